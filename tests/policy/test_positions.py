"""The scanner finds what `tomllib` finds, at the place where it stands."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.policy.positions import locate

DOCUMENT = '''\
schema = 1 # not [here]
"quoted key" = """
[files]
read = ["no"]
""" # after
literal = \'\'\'it"s # fine\'\'\'
a.b . "c" = [ # comment ]
  1, 2,
  [3, { x = "}", y = [4] }], # end
]
when = 1979-05-27 07:32:00

[ files ]
read = ["/a", "/b\\"]"]
[[row]]
name = "first"
[row.sub]
x = 1
[[row]]
name = \'second\'
[[row.deep]]
y = { z = true }
'''


def leaves(value, where=()):
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*where, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from leaves(each, (*where, index))
    else:
        yield where, value


@pytest.mark.parametrize("document", [DOCUMENT, DOCUMENT.rstrip("\n")])
def test_every_value_is_found_where_it_stands(document):
    found = locate(document)
    for where, value in leaves(tomllib.loads(document)):
        assert where in found.values, where
        rest = document[found.values[where] :]
        if isinstance(value, bool | int):
            assert rest.startswith(str(value).lower())
        elif isinstance(value, str):
            assert rest[0] in "\"'"


def test_lines_and_columns_count_from_one():
    found = locate(DOCUMENT)
    assert found.place(("schema",), of_key=True) == (1, 1)
    assert found.place(("schema",)) == (1, 10)
    assert found.place(("files", "read", 1)) == (14, 15)
    assert found.place(("row", 1, "name")) == (20, 8)
    assert found.place(("row", 1, "nothing")) == (19, 3)
    assert found.place(("nothing",)) == (1, 1)


SCALARS = st.one_of(
    st.integers(-(2**40), 2**40).map(str),
    st.booleans().map(lambda flag: str(flag).lower()),
    st.text(st.characters(exclude_characters='"\\', exclude_categories=["Cc", "Cs"])).map(lambda text: f'"{text}"'),
    st.text('abc #]}[{,="', max_size=8).map(lambda text: f"'{text}'"),
    st.text('abc #]}[{,="\n', max_size=8).map(lambda text: f"'''{text}'''"),
)
KEYS = st.one_of(st.text("ab-_1", min_size=1, max_size=4), st.text("ab .#=[", max_size=4).map(lambda t: f'"{t}"'))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: "[" + " ,\n # x ]\n ".join(each) + "]"),
        st.dictionaries(KEYS, inner, max_size=3).map(
            lambda each: "{" + ", ".join(f"{key} = {value}" for key, value in each.items()) + "}"
        ),
    ),
    max_leaves=8,
)
LINES = st.one_of(
    st.tuples(KEYS, VALUES).map(lambda pair: f"{pair[0]} = {pair[1]}"),
    st.lists(KEYS, min_size=1, max_size=3).map(lambda keys: f"[{'.'.join(keys)}]"),
    st.lists(KEYS, min_size=1, max_size=2).map(lambda keys: f"[[ {' . '.join(keys)} ]]"),
)


@given(st.lists(LINES, max_size=6).map("\n".join))
def test_every_document_is_scanned_to_its_end(document):
    try:
        data = tomllib.loads(document)
    except tomllib.TOMLDecodeError:
        locate(document)  # and what is no document does no harm
        return
    found = locate(document)
    for where, _ in leaves(data):
        assert where in found.values
