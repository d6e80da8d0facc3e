"""Who keeps whose snapshots."""

from monarch_nb.core.elastic.keepers import keepers


def test_with_replicas_nobody_keeps_anything():
    assert keepers(dict.fromkeys(range(4), 7), dict.fromkeys(range(4), 1)) == {}
    assert keepers({0: 1, 1: 2, 2: 1, 3: 2}, {0: 1, 1: 1, 2: 2, 3: 2}) == {}


def test_a_rank_alone_has_nobody():
    assert keepers({0: 7}, {0: 1}) == {}


def test_on_one_host_the_next_rank_keeps():
    assert keepers({0: 1, 1: 2, 2: 3}, dict.fromkeys(range(3), 1)) == {0: 1, 1: 2, 2: 0}


def test_a_rank_of_another_host_keeps_and_all_keep_as_many():
    parts = {rank: rank for rank in range(6)}
    hosts = {0: 1, 1: 1, 2: 2, 3: 2, 4: 3, 5: 3}
    found = keepers(parts, hosts)
    assert all(hosts[rank] != hosts[keeper] for rank, keeper in found.items())
    assert sorted(found.values()) == list(range(6))


def test_a_host_with_fewer_ranks_keeps_more_with_each():
    found = keepers({rank: rank for rank in range(5)}, {0: 1, 1: 1, 2: 1, 3: 2, 4: 2})
    assert [found[rank] for rank in range(5)] == [3, 4, 3, 0, 1]


def test_only_who_has_what_no_other_has_is_kept():
    assert keepers({0: 7, 1: 7, 2: 8}, dict.fromkeys(range(3), 1)) == {2: 0}
