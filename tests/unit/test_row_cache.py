"""The row cache against a device that does what it is told: whatever is read has the words of its origin."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.row_cache import RowCache

SIZE, MOST = 8, 4
launches = st.lists(st.tuples(st.lists(st.integers(0, 20), max_size=MOST), st.booleans()), max_size=60)


@given(launches)
def test_what_is_read_is_what_was_meant(steps):  # spec R13
    cache, device, copied, asked = RowCache(SIZE), {}, 0, 0
    for origins, acts in steps:
        places = [(origin, *cache.place(origin)) for origin in origins]
        for origin, index, new in places if acts else ():
            if new:
                device[index] = origin
                copied += 1
        for origin, index, _ in places if acts else ():
            assert device[index] == origin
            cache.filled(origin, index)
            asked += 1
    assert copied <= asked


def test_a_row_is_copied_once():  # spec R13
    cache = RowCache(SIZE)
    index, new = cache.place("a")
    assert new
    assert cache.place("a") == (index, True)  # nobody has said that it is there
    cache.filled("a", index)
    assert cache.place("a") == (index, False)
    for number in range(SIZE):
        cache.place(number)
    assert cache.place("a")[1]  # it was given away
    cache.filled("a", SIZE)  # of another place: says nothing
    assert cache.place("a")[1]
