"""Reading openb's CSV: what rows mean, and where exactly something is wrong."""

import gzip
from pathlib import Path

import pytest
from traces import NODES, PODS, write

from weft.files.reading import read_text
from weft.lab.simulate.openb import OTHER_MIB, TracePod, read_nodes, read_pods, shape_of
from weft.model import BadInputError, DeviceRule, Gpu, GpuRequest, Node, Shape


def error_of(read, path: Path) -> str:  # type: ignore[no-untyped-def]
    with pytest.raises(BadInputError) as caught:
        read(path)
    return str(caught.value).replace(str(path), "FILE")


def nodes_error(tmp_path: Path, text: str) -> str:
    return error_of(read_nodes, write(tmp_path / "nodes.csv", text))


def pods_error(tmp_path: Path, text: str) -> str:
    return error_of(read_pods, write(tmp_path / "pods.csv", text))


def test_nodes_as_they_stand(tmp_path: Path) -> None:
    text = NODES + "n1,64000,262144,2,T4\nn0,96000,1000,0,\nn2,1,2,1,Unheard\n"
    assert read_nodes(write(tmp_path / "f", text)) == [
        Node("n1", (Gpu(0, 15_360, "T4"), Gpu(1, 15_360, "T4")), 64_000, 262_144),
        Node("n0", (), 96_000, 1000),
        Node("n2", (Gpu(0, OTHER_MIB, "Unheard"),), 1, 2),
    ]


def test_pods_as_they_stand(tmp_path: Path) -> None:
    text = PODS + (
        "whole,1000,2000,2,1000,T4|P100,10,30,20\n"
        "share,500,100,1,250,,5,,\n"
        "cpu,100,100,0,700,T4,,,\n"
    )
    whole, share, cpu = read_pods(write(tmp_path / "f", text))
    models = DeviceRule(models=("P100", "T4"))
    assert whole.shape == Shape(
        (GpuRequest(2, whole=True),), 1000, 2000, devices=models, trace_spec="T4|P100"
    )
    assert (whole.total_milli, whole.created_s, whole.deleted_s, whole.scheduled_s) == (
        2000,
        10,
        30,
        20,
    )
    assert share.shape == Shape((GpuRequest(1, milli=250),), 500, 100)
    assert (share.total_milli, share.created_s, share.deleted_s, share.scheduled_s) == (
        250,
        5,
        None,
        None,
    )
    assert cpu.shape == Shape((), 100, 100, trace_spec="T4")
    assert cpu.total_milli == 0


def test_one_gpu_of_1000_milli_is_a_whole_card() -> None:
    assert shape_of(0, 0, 1, 1000).gpu_requests == (GpuRequest(1, whole=True),)
    assert shape_of(0, 0, 1, 999).gpu_requests == (GpuRequest(1, milli=999),)


def test_five_columns_are_enough_and_order_and_extra_columns_do_not_matter(tmp_path: Path) -> None:
    text = "num_gpu,extra,name,memory_mib,gpu_milli,cpu_milli\n1,?,p,3,500,4\n"
    (found,) = read_pods(write(tmp_path / "f", text))
    assert found == TracePod("p", shape_of(4, 3, 1, 500), 1, 500)


def test_equal_shapes_are_one_object(tmp_path: Path) -> None:
    text = PODS + "a,1,1,1,500,,,,\nb,1,1,1,500,,,,\n"
    first, second = read_pods(write(tmp_path / "f", text))
    assert first.shape is second.shape


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_gzip_byte_order_marks_blank_lines_and_windows_newlines(
    tmp_path: Path, newline: str
) -> None:
    text = ("\ufeff" + NODES + "\nn1, 64000 ,1,1,T4\n\n").replace("\n", newline)
    path = tmp_path / "nodes.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    (found,) = read_nodes(path)
    assert (found.name, found.cpu_milli) == ("n1", 64_000)


def test_an_empty_file_and_one_without_rows(tmp_path: Path) -> None:
    assert nodes_error(tmp_path, "") == (
        "FILE: is empty; its first line must be sn,cpu_milli,memory_mib,gpu,model,…"
    )
    assert read_nodes(write(tmp_path / "f", NODES)) == []


@pytest.mark.parametrize("missing", ["sn", "cpu_milli", "memory_mib", "gpu", "model"])
def test_a_missing_column_is_named_with_those_needed(tmp_path: Path, missing: str) -> None:
    header = ",".join(column for column in NODES.strip().split(",") if column != missing)
    assert nodes_error(tmp_path, header + "\n") == (
        f"FILE, line 1: column {missing} is missing; need sn, cpu_milli, memory_mib, gpu, model"
    )
    assert nodes_error(tmp_path, "\n").startswith("FILE, line 1: column sn is missing")


@pytest.mark.parametrize(
    ("cell", "what"),
    [
        ("x", "'x' is not a whole number"),
        ("", "'' is not a whole number"),
        ("1.5", "'1.5' is not a whole number"),
        ("1e3", "'1e3' is not a whole number"),
        ("１００", "'１００' is not a whole number"),
        ("1_000", "'1_000' is not a whole number"),
        ("-1", "-1 is not between 0 and 1000000000"),
        ("99999999999", "99999999999 is not between 0 and 1000000000"),
    ],
)
def test_bad_numbers_are_named_by_line_and_column(tmp_path: Path, cell: str, what: str) -> None:
    text = NODES + f"n0,1,1,0,\nn1,1,{cell},1,T4\n"
    assert nodes_error(tmp_path, text) == f"FILE, line 3, column memory_mib: {what}"


def test_a_line_is_counted_as_an_editor_counts_it(tmp_path: Path) -> None:
    text = NODES + '\n"n\n0",1,1,0,\nn1,1,bad,1,T4\n'
    assert nodes_error(tmp_path, text).startswith("FILE, line 5, column memory_mib")


def test_more_gpus_than_any_node_has_are_refused(tmp_path: Path) -> None:
    assert nodes_error(tmp_path, NODES + "n,1,1,1025,T4\n") == (
        "FILE, line 2, column gpu: 1025 is not between 0 and 1024"
    )


def test_nodes_need_names_of_their_own(tmp_path: Path) -> None:
    twice = NODES + "n,1,1,1,T4\nn,1,1,1,T4\n"
    assert nodes_error(tmp_path, twice) == (
        "FILE, line 3, column sn: 'n' is empty or a duplicate; names must be unique"
    )
    assert nodes_error(tmp_path, NODES + ",1,1,1,T4\n").startswith("FILE, line 2, column sn: ''")


def test_rows_of_another_length_are_refused(tmp_path: Path) -> None:
    assert nodes_error(tmp_path, NODES + "n,1,1\n") == "FILE, line 2: 3 columns, the header has 5"
    assert nodes_error(tmp_path, NODES + "n,1,1,1,T4,more\n").endswith("the header has 5")


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (
            "p,1,1,2,500,,,,",
            "gpu_milli: 500 with num_gpu 2; a pod with several GPUs gets whole ones, so write 1000",
        ),
        ("p,1,1,1,0,,,,", "gpu_milli: 0 on a pod with GPUs; write 1 to 1000"),
        ("p,1,1,1,1001,,,,", "gpu_milli: 1001 is not between 0 and 1000"),
        ("p,1,1,0.5,500,,,,", "num_gpu: '0.5' is not a whole number"),
        ("p,1,1,-1,500,,,,", "num_gpu: -1 is not between 0 and 1024"),
        ("p,1,1,1,1000,,-5,,", "creation_time: -5 is not between 0 and 1000000000000"),
        ("p,1,1,1,1000,,1,x,", "deletion_time: 'x' is not a whole number"),
        ("p,1,1,1,1000,,1,,1.5", "scheduled_time: '1.5' is not a whole number"),
    ],
)
def test_bad_pods_are_named_by_line_and_column(tmp_path: Path, row: str, error: str) -> None:
    assert pods_error(tmp_path, PODS + row + "\n") == f"FILE, line 2, column {error}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert error_of(read_nodes, tmp_path / "none") == "FILE: no such file"
    assert error_of(read_nodes, tmp_path) == "FILE: is a directory; name a file"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(NODES.encode() + b"\xff\xfe,1,1,1,T4\n")
    assert error_of(read_nodes, path).startswith("FILE: cannot be read: not UTF-8 text")


@pytest.mark.parametrize("damage", ["cut", "header", "body", "checksum"])
def test_damaged_gzip_files_are_refused(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress((NODES + "n,1,1,1,T4\n" * 50).encode())
    path = tmp_path / "f.gz"
    path.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "header": whole[:2] + b"\0" + whole[3:],
            "body": whole[:10] + b"\xff\xff\xff\xff" + whole[14:],
            "checksum": whole[:-8] + b"\0\0\0\0" + whole[-4:],
        }[damage]
    )
    assert error_of(read_nodes, path).startswith("FILE: cannot be read: ")


@pytest.mark.parametrize(
    "text", [NODES.replace("\n", "\r") + "n,1,1,1,T4\r", "sn\rx,1\n", NODES + "n,1\r2,3,4,5\n"]
)
def test_what_is_no_csv_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(text.encode())
    assert ": not CSV: " in error_of(read_nodes, path)


def test_a_cell_beyond_all_measure_is_refused(tmp_path: Path) -> None:
    assert ": not CSV: " in nodes_error(tmp_path, NODES + "n" * 200_000 + ",1,1,1,T4\n")
    assert "not a whole number" in nodes_error(tmp_path, NODES + f"n,{'9' * 5000},1,1,T4\n")


def test_text_is_read_plain_or_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(gzip.compress("ü".encode()))
    assert read_text(path) == "ü"
