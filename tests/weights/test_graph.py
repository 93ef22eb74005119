from __future__ import annotations

from meshinfer.weights.graph import Graph


def _graph(*sources: tuple[int, ...], kinds: dict[int, str] | None = None) -> Graph:
    """Only the wiring matters; nodes are never asked."""
    names = tuple((kinds or {}).get(place, "Add") for place in range(len(sources)))
    return Graph(tuple(sources), names, tuple(sources))


def test_a_place_that_no_edge_jumps_over_separates() -> None:
    #      0 -> 1 -> 3 -> 4 -> 6     and 1 -> 2 -> 3, 4 -> 5 -> 6: diamonds joined at 3 and 4
    graph = _graph((), (0,), (1,), (1, 2), (3,), (4,), (4, 5))
    flow = graph.flow(0, 6)
    assert flow == (0, 1, 2, 3, 4, 5, 6)
    assert graph.separators(flow) == (0, 1, 2, 3, 4, 5, 6)[:2] + (3, 4, 6)


def test_dead_ends_and_side_inputs_are_no_part_of_the_flow() -> None:
    graph = _graph((), (), (0, 1), (2,), (2,))  # 1: a constant; 3: read by nobody
    assert graph.flow(0, 4) == (0, 2, 4)


def test_shapes_carry_no_values() -> None:
    graph = _graph((), (0,), (1,), (0,), kinds={1: "ShapeOf"})
    assert graph.reached_from(0) == {0, 3}


def test_behind_stops_where_it_is_told() -> None:
    graph = _graph((), (0,), (1,), (2,))
    assert graph.behind([3], lambda place: place == 2) == {2, 3}
