"""How many jobs a worker asks for."""

from taskharbor_django.worker.appetite import FIRST_BATCH, LARGEST_BATCH, REMEMBERED, Appetite


def with_runs_of(seconds, **options):
    appetite = Appetite(**options)
    for _ in range(REMEMBERED):
        appetite.ran(seconds)
    return appetite


def of_a_deep_queue(seconds, **options):
    appetite = with_runs_of(seconds, **options)
    for _ in range(10):
        wanted = appetite.wants(free=0, waiting=0)
        appetite.claimed(wanted, wanted)
    return appetite


def test_nothing_is_known_yet_so_only_the_free_slots_are_filled():
    assert Appetite().wants(free=8, waiting=0) == 8


def test_long_runs_are_never_prefetched():
    assert with_runs_of(0.5).wants(free=3, waiting=0) == 3


def test_short_runs_are_prefetched():
    assert with_runs_of(0.001).wants(free=8, waiting=0) == 8 + FIRST_BATCH


def test_the_median_counts_and_not_the_slowest():
    appetite = Appetite()
    for number in range(REMEMBERED):
        appetite.ran(30.0 if number % 4 == 0 else 0.001)
    assert appetite.wants(free=0, waiting=0) == FIRST_BATCH


def test_a_batch_grows_while_claims_come_back_full():
    appetite = of_a_deep_queue(0.001, slots=8)
    assert appetite.wants(free=0, waiting=0) == LARGEST_BATCH
    appetite.claimed(LARGEST_BATCH, 3)
    assert appetite.wants(free=0, waiting=0) == FIRST_BATCH


def test_of_a_deep_queue_a_second_batch_is_claimed_while_the_first_is_worked_off():
    appetite = of_a_deep_queue(0.001, slots=8)
    assert appetite.wants(free=-500, waiting=LARGEST_BATCH) == LARGEST_BATCH
    assert appetite.wants(free=-501, waiting=LARGEST_BATCH + 1) == 0
    assert appetite.wants(free=2, waiting=0) == LARGEST_BATCH + 2


def test_of_a_shallow_queue_it_is_one_batch():
    appetite = with_runs_of(0.001)
    assert appetite.wants(free=-FIRST_BATCH, waiting=FIRST_BATCH) == 0


def test_nothing_more_is_asked_for_while_half_a_batch_waits():
    appetite = with_runs_of(0.001)
    assert appetite.wants(free=-40, waiting=40) == 0
    assert appetite.wants(free=-20, waiting=20) == FIRST_BATCH - 20


def test_what_had_to_be_given_back_is_not_prefetched_again_until_a_slot_frees():
    appetite = with_runs_of(0.001)
    appetite.waited_too_long()
    assert appetite.wants(free=0, waiting=0) == 0
    appetite.slot_freed()
    assert appetite.wants(free=0, waiting=0) == FIRST_BATCH


def test_prefetch_can_be_bounded_and_switched_off():
    assert with_runs_of(0.001, most=10).wants(free=1, waiting=0) == 11
    assert with_runs_of(0.001, most=0).wants(free=1, waiting=0) == 1


def test_no_more_is_prefetched_than_is_begun_before_it_would_be_given_back():
    appetite = of_a_deep_queue(0.009, slots=2)
    assert appetite.wants(free=0, waiting=0) == 66  # 0.3 s of two threads


def test_a_thread_that_finds_the_runs_just_counted_by_another_changes_nothing():
    """It saw that there were enough, and then another one began anew."""

    class Counted(list):
        def __len__(self):
            return REMEMBERED

        def __iter__(self):
            return iter(())

    appetite = Appetite()
    for _ in range(REMEMBERED):
        appetite.ran(0.001)
    wanted = appetite.wants(free=0, waiting=0)
    appetite._runs = Counted()
    appetite.ran(100.0)
    assert appetite.wants(free=0, waiting=0) == wanted
