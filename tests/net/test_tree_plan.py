"""Where hosts are in the tree: near the controller, few under each, and never under themselves."""

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.net.hosts.tree.plan import Plan


def depth(plan: Plan, host: int) -> int:
    return len(list(plan.above(host)))


def under(plan: Plan, hosts, parent) -> list[int]:
    return [each for each in hosts if plan.parent_of(each) == parent]


def test_a_thousand_hosts_are_two_steps_away_at_most():
    plan, hosts = Plan(32), range(1000)
    for host in hosts:
        plan.add(host)
    roots = under(plan, hosts, None)
    assert len(roots) == 32
    assert max(depth(plan, host) for host in hosts) == 1
    counts = [len(under(plan, hosts, root)) for root in roots]
    assert max(counts) - min(counts) <= 1, "nobody carries for more than others"


def test_those_under_a_host_that_is_lost_are_given_other_places():
    plan, hosts = Plan(2), range(7)
    for host in hosts:
        plan.add(host)
    children = under(plan, hosts, 0)
    assert plan.remove(0) == children
    assert plan.parent_of(children[0]) is None, "its place is free"
    assert plan.remove(0) == []


def test_a_host_can_go_under_another():
    plan = Plan(1)
    for host in range(4):
        plan.add(host)
    assert list(plan.above(3)) == [2, 1, 0]
    plan.move(3)
    assert list(plan.above(3)) == [2, 1, 0], "there is no other place with room"
    plan = Plan(2)
    for host in range(4):
        plan.add(host)
    old = plan.parent_of(3)
    plan.move(3)
    assert plan.parent_of(3) not in (old, 3)


steps = st.lists(st.tuples(st.sampled_from(["add", "remove", "move"]), st.integers(0, 30)))


@settings(max_examples=200)
@given(steps, st.integers(1, 4))
def test_it_is_a_tree_whatever_happens(steps, fan_out):
    plan, hosts = Plan(fan_out), set()
    for what, host in steps:
        if what == "add" and host not in hosts:
            plan.add(host)
            hosts.add(host)
        elif what == "remove":
            plan.remove(host)
            hosts.discard(host)
        elif what == "move" and host in hosts:
            plan.move(host)
        for parent in (None, *hosts):
            assert len(under(plan, hosts, parent)) <= fan_out
        for each in hosts:
            assert set(plan.above(each)) <= hosts - {each}
