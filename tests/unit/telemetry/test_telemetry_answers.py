"""A server's answers become arrays; what is no answer becomes one clear error."""

import json
import math

import numpy as np
import pytest
from telemetry_world import NOW_S, answer, body, one

from weft.telemetry.meaning.answers import TelemetryError, decode


def test_samples_come_out_in_order_with_their_times() -> None:
    found = answer(
        ({"__name__": "x", "gpu": "0"}, [(NOW_S, 1), (NOW_S + 15.5, 2.25)]),
        ({"__name__": "x", "gpu": "1"}, [(NOW_S, "1e3")]),
    )
    assert found.counts.tolist() == [2, 1]
    assert found.times.tolist() == [NOW_S, NOW_S + 15.5, NOW_S]
    assert found.values.tolist() == [1.0, 2.25, 1000.0]
    assert [json.loads(labels)["gpu"] for labels in found.labels] == ["0", "1"]


def test_an_instant_vector_is_one_sample_a_series() -> None:
    told = (
        b'{"status":"success","data":{"resultType":"vector","result":['
        b'{"metric":{"__name__":"x"},"value":[1700000000.5,"42"]}]}}'
    )
    found = decode(told, "w")
    assert (found.counts.tolist(), found.times.tolist(), found.values.tolist()) == (
        [1],
        [1700000000.5],
        [42.0],
    )


def test_numbers_that_are_none_stay_none() -> None:
    found = answer(({"__name__": "x"}, [(1.0, "NaN"), (2.0, "+Inf"), (3.0, "-Inf")]))
    assert math.isnan(found.values[0])
    assert found.values[1:].tolist() == [math.inf, -math.inf]


def test_spaces_and_empty_series_change_nothing() -> None:
    told = json.loads(body(one("x", 7), ({"__name__": "y"}, [])))
    found = decode(json.dumps(told, indent=2).encode(), "w")
    assert (found.counts.tolist(), found.values.tolist()) == ([1, 0], [7.0])
    assert decode(body(), "w").counts.tolist() == []


def test_native_histograms_are_passed_over() -> None:
    told = (
        b'{"status":"success","data":{"resultType":"matrix","result":['
        b'{"metric":{"__name__":"h"},"histograms":[[1,{"count":"3"}]]},'
        b'{"metric":{"__name__":"x"},"values":[[1,"2"]]}]}}'
    )
    assert decode(told, "w").counts.tolist() == [0, 1]


def test_warnings_of_a_partial_answer_are_kept() -> None:
    told = matrix(b"").replace(b"{", b'{"warnings":["a store is down"],', 1)
    assert decode(told, "w").warnings == ("a store is down",)


def matrix(series: bytes) -> bytes:
    return b'{"status":"success","data":{"resultType":"matrix","result":[' + series + b"]}}"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"", "garbage"),
        (b"<html>Bad gateway", "garbage"),
        (b"\xff\xfe{}", "garbage"),
        (b"[]", "garbage"),
        (b'{"status":"success"}', "status"),
        (b'{"status":"error","errorType":"bad_data","error":"parse error"}', "status"),
        (b'{"status":"success","data":{"resultType":"scalar","result":[]}}', "garbage"),
        (matrix(b'{"metric":{},"values":[[1,"x"]]}'), "garbage"),
        (matrix(b'{"metric":{},"values":[[1]]}'), "garbage"),
        (matrix(b'{"metric":{},"values":[[1,"2"],[3]]}'), "garbage"),
        (matrix(b'{"metric":{},"values":{"a":[1,"2"]}}'), "garbage"),
        (matrix(b'{"metric":{},"values":"[1,2]"}'), "garbage"),
    ],
)
def test_what_is_no_answer_is_one_error(text: bytes, kind: str) -> None:
    with pytest.raises(TelemetryError, match=r"^http://p: ") as found:
        decode(text, "http://p")
    assert found.value.kind == kind


def test_any_truncation_is_an_error_never_a_shorter_answer() -> None:
    whole = body(({"__name__": "x"}, [(NOW_S + k, k) for k in range(5)]), one("y", 3))
    for end in range(len(whole)):
        with pytest.raises(TelemetryError):
            decode(whole[:end], "w")
    assert np.array_equal(decode(whole, "w").values, [0, 1, 2, 3, 4, 3])


def test_an_answer_nested_too_deeply_is_one_error() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    told = b'{"status": "success", "data": {"resultType": "vector", "result": [], "x": '
    with pytest.raises(TelemetryError, match="nested too deeply") as raised:
        decode(told + deep + b"}}", "here")
    assert raised.value.kind == "garbage"
    assert len(str(raised.value)) < 500


def test_a_servers_words_are_cut_and_fit_to_be_printed() -> None:
    evil = "\x1b[31mred\nERROR all is lost \x9b\u202e" + "a" * 10_000
    for told in (
        {"status": "error", "errorType": evil, "error": evil},
        {"status": evil},
        {"status": "success", "data": {"resultType": evil, "result": []}},
    ):
        with pytest.raises(TelemetryError) as raised:
            decode(json.dumps(told).encode(), "here")
        assert str(raised.value).isprintable()
        assert len(str(raised.value)) < 600
    with pytest.raises(TelemetryError) as raised:
        decode(b"\x1b[31m no JSON", "here")
    assert str(raised.value).isprintable()
    whole = {"status": "success", "data": {"resultType": "vector", "result": []}}
    found = decode(json.dumps({**whole, "warnings": [evil] * 1000}).encode(), "here").warnings
    assert len(found) == 10
    assert found[0].startswith("\\x1b[31mred\\nERROR")
    assert all(len(one) <= 200 and one.isprintable() for one in found)
