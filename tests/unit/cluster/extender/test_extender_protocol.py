"""Bytes to values and back, whatever the case of keys."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.extender import protocol
from weft.cluster.extender.protocol import (
    FilterAnswer,
    HostPriority,
    MetaPod,
    MetaVictims,
    PreemptAnswer,
)
from weft.model import BadInputError

POD = {"metadata": {"name": "a", "uid": "u"}, "spec": {"containers": []}}


def dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("spell", [str, str.lower, str.upper, str.swapcase])
def test_keys_are_read_in_any_case(spell: Any) -> None:
    body = {spell("Pod"): POD, spell("Nodes"): None, spell("NodeNames"): ["n1", "n2"]}
    found = protocol.ArgsReader().read(dumps(body))
    assert (found.pod.metadata.uid, found.names, found.nodes) == ("u", ["n1", "n2"], None)
    asked = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n"}
    bind = protocol.read_bind(dumps({spell(key): value for key, value in asked.items()}))
    assert (bind.name, bind.namespace, bind.uid, bind.node) == ("p", "ns", "u", "n")
    victims = {"n1": {spell("Pods"): [{spell("UID"): "v"}], spell("NumPDBViolations"): 2}}
    read = protocol.read_preempt(
        dumps({spell("Pod"): POD, spell("NodeNameToMetaVictims"): victims})
    )
    assert read.victims["n1"].uids == ["v"]
    assert read.victims["n1"].pdb_violations == 2


def test_node_names_keep_their_case_in_preempt() -> None:
    body = {"Pod": POD, "NodeNameToMetaVictims": {"Node-A": {"Pods": None}}}
    assert [*protocol.read_preempt(dumps(body)).victims] == ["Node-A"]


def test_both_lists_nil_are_no_nodes() -> None:
    found = protocol.ArgsReader().read(dumps({"Pod": POD, "Nodes": None, "NodeNames": None}))
    assert (found.names, found.nodes) == ([], None)


def test_equal_names_are_the_same_list_and_others_are_not() -> None:
    reader = protocol.ArgsReader()
    one, same, other, none = (
        reader.read(dumps({"Pod": POD, "NodeNames": names})).names
        for names in (["n1"], ["n1"], ["n2"], None)
    )
    assert one is same
    assert (other, none) == (["n2"], [])
    with pytest.raises(BadInputError):
        reader.read(b'{"Pod":{},"NodeNames":[1]}')
    assert reader.read(dumps({"Pod": POD, "NodeNames": None})).names == []


def test_names_that_were_answered_come_back_as_the_list_that_was_answered() -> None:
    reader = protocol.ArgsReader()
    asked = reader.read(b'{"Pod":%s,"NodeNames":["n1", "n2","n3"]}' % dumps(POD))
    assert bytes(reader.answer(asked, asked.names)) == b'["n1", "n2","n3"]'
    some = ["n1", "n3"]
    answered = bytes(reader.answer(asked, some))
    assert json.loads(answered) == some
    assert reader.read(b'{"Pod":%s,"NodeNames":%s}' % (dumps(POD), answered)).names is some
    nobody = reader.read(dumps({"Pod": POD, "NodeNames": None}))
    assert bytes(reader.answer(nobody, nobody.names)) == b"[]"


def test_full_nodes_go_back_as_the_bytes_that_came() -> None:
    item = b'{"metadata" : {"name":"n1","unheard":{"of":[1.50]}}, "status":{}}'
    body = b'{"Pod":%s,"Nodes":{"metadata":{},"items":[%s]},"NodeNames":null}' % (dumps(POD), item)
    found = protocol.ArgsReader().read(body)
    assert found.nodes is not None
    assert found.names == ["n1"]
    answer = protocol.encode(FilterAnswer(nodes=protocol.NodeList([found.nodes["n1"]])))
    assert item in answer


def test_answers_have_gos_names_and_nils() -> None:
    assert json.loads(protocol.encode(FilterAnswer(error="x"))) == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "x",
    }
    assert protocol.encode([HostPriority("n1", 7)]) == b'[{"Host":"n1","Score":7}]'
    victims = PreemptAnswer({"n": MetaVictims([MetaPod("u")], 1)})
    assert protocol.encode(victims) == (
        b'{"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"u"}],"NumPDBViolations":1}}}'
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the request"),
        (b"[]", "the request"),
        (b"{", "the request"),
        (b'{"Pod":null}', "has no Pod"),
        (b'{"Pod":7}', "Pod"),
        (b'{"Pod":{},"NodeNames":"n1"}', "NodeNames"),
        (b'{"Pod":{},"NodeNames":[1]}', "NodeNames"),
        (b'{"Pod":{},"Nodes":[]}', "Nodes"),
        (b'{"Pod":{"metadata":{"name":"\xff"}}}', "Pod"),
        (b'{"Pod":' + b"[" * 100_000, "the request"),
        (b'{"Pod":' + b'{"a":' * 100_000, "the request"),
    ],
)
def test_what_is_wrong_is_named(body: bytes, says: str) -> None:
    with pytest.raises(BadInputError, match=says) as error:
        protocol.ArgsReader().read(body)
    assert len(str(error.value)) < 1000


def test_a_bind_without_a_field_names_it() -> None:
    with pytest.raises(BadInputError, match="no PodNamespace, PodUID"):
        protocol.read_bind(b'{"PodName":"a","Node":"n","PodUID":null}')


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "Pod",
                    "pod",
                    "Nodes",
                    "NodeNames",
                    "items",
                    "metadata",
                    "name",
                    "spec",
                    "UID",
                    "NodeNameToVictims",
                    "NodeNameToMetaVictims",
                    "Pods",
                    "containers",
                    "PodUID",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)
READERS = (protocol.ArgsReader().read, protocol.read_bind, protocol.read_preempt)


@given(json_values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_words(body: bytes) -> None:
    for read in READERS:
        with suppress(BadInputError):
            read(body)
