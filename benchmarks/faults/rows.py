"""The table: each fault, what is promised of it, and the tests that inject it and look."""

import math
from dataclasses import dataclass
from typing import Final

_DEATH = "tests/faults/test_death.py"
_STOPPED = "tests/faults/test_stopped.py"
_HOSTS = "tests/faults/test_hosts.py"
_OWNER = "tests/faults/test_owner.py"
_ERRORS = "tests/faults/test_errors.py"
_VALUES = "tests/faults/test_values.py"
_LOAD = "tests/faults/test_load.py"
_HOST = "tests/host/test_faults.py"
_CLUSTER = "tests/clusters/test_faults.py"
_INTERRUPT = "tests/faults/test_interrupt.py"
_KERNEL_STOP = "tests/kernel/test_interrupt.py"
_BROKEN = "tests/net/test_broken_peers.py"
_STRANGERS = "tests/security/test_strangers.py"
_COLLECTIVES = "tests/worker/groups/test_collectives.py"
_GROUPS_BETWEEN = "tests/net/test_groups_between_hosts.py"
_JOINING = "tests/net/test_joining.py"
_OUTAGES = "tests/net/test_outages.py"


SLOW: Final = {
    _CLUSTER,
    _GROUPS_BETWEEN,
    _LOAD,
    _OUTAGES,
    "tests/clusters/test_slurm_job.py",
    "tests/kernel/test_answers.py",
    "tests/kernel/test_debugged_faults.py",
    "tests/kernel/test_floods.py",
    "tests/kernel/test_lifecycle.py",
    "tests/net/test_floods.py",
    "tests/net/test_wire_fuzz.py",
}
"""A run of a test in these files takes more than a few seconds."""


@dataclass(frozen=True)
class Row:
    """`tests` are functions as pytest names them. `needs`: what a run on another machine adds."""

    number: int
    fault: str
    promise: str
    tests: tuple[str, ...]
    needs: str = ""

    def runs(self, wanted: int) -> dict[str, int]:
        """Return how often each test is run. One that takes long is run a fifth as often where
        quick ones of the row have their `wanted` runs; else those that take long share them."""
        slow = [each for each in self.tests if each.partition(":")[0] in SLOW]
        some = math.ceil(wanted / 5)
        if len(slow) == len(self.tests):
            some = max(some, math.ceil(wanted / len(slow)))
        return {each: some if each in slow else wanted for each in self.tests}


def _of(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{file}::test_{name}" for name in names)


ROWS: Final = (
    Row(
        1,
        "SIGKILL of an idle rank; and what the kernel itself does while ranks and agents die",
        "status and widget turn red though nobody calls anything; `1 + 1` is answered",
        (
            *_of(_DEATH, "an_idle_rank_that_is_killed_is_seen_without_a_call"),
            *_of(_HOST, "a_killed_rank_is_reported_at_once"),
            *_of("tests/kernel/test_answers.py", "the_kernel_answers_all_the_time"),
        ),
    ),
    Row(
        2,
        "SIGKILL of a rank in a call",
        "`RankExited` with its signal; values of the other ranks are kept on the error",
        (
            *_of(
                _DEATH,
                "a_call_in_flight_ends_with_the_rank_and_keeps_the_others_values",
                "every_kind_of_call_ends_and_later_ones_fail_at_once",
                "a_fat_rank",
                "a_rank_that_waits_for_a_killed_one_is_told_too",
            ),
        ),
    ),
    Row(
        3,
        "SIGKILL of a rank while others wait for it in a collective",
        "who waits is told which rank has died; after a heal a new group works",
        (
            *_of(
                _COLLECTIVES,
                "a_rank_that_has_died_is_named",
                "a_wait_for_one_that_lives_ends_when_others_of_the_group_have_died",
            ),
            *_of(_GROUPS_BETWEEN, "a_member_on_the_other_host_that_died_is_named"),
            *_of("tests/faults/test_heal.py", "process_groups_are_made_again_on_all_ranks"),
        ),
        needs="NCCL: a GPU",
    ),
    Row(
        4,
        "SIGSTOP of a rank, idle, in a call, and while others wait for it; SIGCONT",
        "silent within 2.5 s; heard again, no reply is lost or doubled; given up, it is gone",
        (
            *_of(
                _STOPPED,
                "silent_then_heard_and_no_reply_lost_or_doubled",
                "stopped_right_after_its_start",
                "unreachable_after_the_grace_and_what_it_says_later_is_dropped",
                "a_message_of_a_rank_that_was_given_up_is_dropped",
                "several_stopped_at_once_are_told_together_in_time",
            ),
            *_of(_COLLECTIVES, "a_rank_that_is_stopped_is_silent_to_those_who_wait"),
            *_of(_HOST, "a_stopped_rank_is_silent_and_heard_again"),
        ),
        needs="NCCL: a GPU",
    ),
    Row(
        5,
        "SIGKILL of a host's zygote or agent, SIGSTOP of its agent",
        "all ranks of the host end, one failure names them, other hosts go on",
        (
            *_of(_HOSTS, "all_ranks_of_the_host_end_and_are_told_as_one"),
            *_of(
                _HOST,
                "every_rank_ends_with_the_zygote_and_another_takes_its_place",
                "nothing_survives_the_agent",
                "nothing_survives_the_agent_even_with_a_stopped_zygote",
            ),
            *_of(_CLUSTER, "all_ranks_of_the_host_end_and_the_others_go_on"),
        ),
    ),
    Row(
        6,
        "SIGKILL of the kernel or program, SIGSTOP then SIGKILL, the restart button",
        "no orphan on any host",
        (
            *_of(
                _OWNER,
                "sigkill_leaves_nothing",
                "stopped_and_then_killed_leaves_nothing",
                "a_client_that_takes_long_to_die_leaves_nothing",
            ),
            *_of(_HOST, "nothing_survives_the_owner"),
            *_of("tests/kernel/test_lifecycle.py", "restart_gives_a_fresh_kernel"),
            *_of(_OUTAGES, "a_client_that_is_killed_leaves_nothing_on_the_host"),
            *_of(_CLUSTER, "nothing_is_left_on_any_host_when_the_program_has_gone"),
        ),
    ),
    Row(
        7,
        "SIGTERM, a normal end, an exception; ranks that do not want to end",
        "actors clean up, then all ends in time",
        (
            *_of(
                _OWNER,
                "an_orderly_end_cleans_up",
                "a_rank_that_will_not_end_does_not_hold_up_the_end",
                "a_deaf_rank_is_killed_in_time",
            ),
        ),
    ),
    Row(
        8,
        "a rank beyond its memory limit; `MemoryError`",
        "the death says out of memory, with limit and peak; a `MemoryError` is an error of the "
        "call, and the rank lives",
        (
            *_of(_HOST, "a_rank_that_eats_its_memory_is_said_to_have"),
            *_of(_ERRORS, "a_memory_error_is_one_of_the_call"),
        ),
        needs="memory of a GPU",
    ),
    Row(
        9,
        "the network between hosts is cut, for a short time, for too long, one way only",
        "a short cut is not noticed; no call is lost, none runs twice; what is cut off for too "
        "long ends by itself",
        (
            *_of(
                _OUTAGES,
                "an_outage_of_3_s_during_10_000_calls_loses_and_doubles_none",
                "connections_that_break_lose_and_double_nothing",
                "after_the_limit_the_host_is_lost_and_ends_what_runs_there",
            ),
            *_of(
                _CLUSTER,
                "an_outage_loses_and_doubles_no_call",
                "what_is_cut_off_for_too_long_ends_by_itself_and_is_healed",
                "a_network_that_loses_one_way_only_is_an_outage_too",
            ),
        ),
    ),
    Row(
        10,
        "the controller reads nothing for ten seconds while ranks print and answer",
        "no rank is held up for long, memory stays bounded, what was dropped is counted",
        (
            *_of(
                "tests/host/test_output.py",
                "a_controller_that_is_stopped_holds_nobody_up_and_is_told_how_much_it_missed",
                "a_rank_goes_on_when_the_controller_takes_nothing",
            ),
            *_of(
                "tests/kernel/test_floods.py",
                "a_kernel_that_stands_still_gets_every_answer_later",
                "a_flood_can_be_stopped_after_the_kernel_has_stood_still",
            ),
        ),
    ),
    Row(
        11,
        "1 GB as an argument and as a result, for eight ranks; more than the limit",
        "other calls are answered meanwhile; beyond the limit the call is refused",
        (
            *_of(_LOAD, "a_gigabyte_to_eight_ranks_holds_up_nobody"),
            *_of(
                "tests/process/test_large_arguments.py",
                "nothing_is_lent_after_a_call",
                "what_is_too_large_for_that_is_refused",
            ),
        ),
        needs="CUDA IPC: a GPU",
    ),
    Row(
        12,
        "arguments and results that cannot be pickled",
        "the error is raised at the call and names the part; both sides live",
        (
            *_of(
                _VALUES,
                "an_argument_that_cannot_be_pickled_is_named",
                "a_keyword_and_a_constructor_argument_are_named",
                "a_result_that_cannot_be_pickled_is_an_error_and_both_live",
                "what_must_work_works",
            ),
        ),
    ),
    Row(
        13,
        "`__getstate__`, `__setstate__`, `__reduce__` that raise, hang or exit",
        "the error names the class; the rank answers others meanwhile",
        (
            *_of(
                _VALUES,
                "getstate_and_reduce_that_raise_are_named_in_the_caller",
                "one_that_raises_on_arrival_is_an_error_of_the_call",
                "one_that_ends_the_process_on_arrival_is_an_exit",
                "one_that_hangs_on_arrival_leaves_the_rank_responsive",
                "a_result_that_raises_here_ends_the_call_and_harms_nothing",
            ),
        ),
    ),
    Row(
        14,
        "exceptions that cannot be pickled, imported or shown, of 100 MB, in circles, in groups",
        "the call ends with type, text and traceback; the rank lives",
        (
            *_of(
                _ERRORS,
                "every_exception_ends_the_call_and_the_rank_lives",
                "an_exception_class_that_cannot_be_imported_here",
                "the_original_is_attached_when_it_survives",
            ),
        ),
    ),
    Row(
        15,
        "a constructor that raises or ends its process on some of eight ranks",
        "the spawn fails as one error that lists them; the others are torn down",
        (
            *_of(
                _ERRORS,
                "a_constructor_that_fails_on_some_of_eight_ranks",
                "a_constructor_that_ends_its_process",
            ),
        ),
    ),
    Row(
        16,
        "recursion without end, arguments nested too deep, a stack overflow in C, a segfault",
        "the first two are errors of the call, the others deaths that show their stack",
        (
            *_of(
                _ERRORS,
                "a_recursion_without_end_is_an_error",
                "a_deeply_nested_argument_or_result_is_an_error",
                "an_overflow_of_the_c_stack_is_an_exit_with_its_stack",
                "a_segmentation_fault_is_an_exit_with_its_stack",
            ),
        ),
    ),
    Row(
        17,
        "`sys.exit`, `os._exit`, `os.abort`, `SystemExit`, `KeyboardInterrupt` in an endpoint",
        "what raises is an error of the call; what ends the process is told as its end",
        (
            *_of(
                _ERRORS,
                "what_raises_ends_the_call_only",
                "other_base_exceptions_are_told_and_the_mesh_goes_on",
                "what_ends_the_process_is_an_exit",
            ),
        ),
    ),
    Row(
        18,
        "`fork`, `multiprocessing`, `subprocess`, daemons with `setsid` in an endpoint",
        "children never touch our sockets, and end with the rank",
        (
            *_of(
                "tests/faults/test_forks.py",
                "what_an_endpoint_starts_ends_with_the_rank",
                "a_forked_child_that_runs_on_answers_nothing",
                "a_forked_child_cannot_use_the_mesh",
            ),
            *_of(_HOST, "what_a_rank_has_started_ends_with_it"),
        ),
    ),
    Row(
        19,
        "a million lines on stdout, one of 100 MB, bytes that are no text, `printf` of C",
        "the notebook gets few messages and a note of what was left out; the stop button works",
        (
            *_of(
                "tests/kernel/test_floods.py",
                "a_million_lines_are_shown_in_few_messages",
                "a_line_of_100_mb_is_cut",
                "a_flood_ends_at_the_stop_button",
            ),
            *_of(
                "tests/host/test_output.py",
                "a_flood_arrives_whole_and_nobody_else_waits_for_it",
                "a_rank_that_is_killed_in_a_flood_leaves_all_that_it_wrote",
            ),
        ),
    ),
    Row(
        20,
        "malformed, truncated, oversized frames of a peer that has been let in",
        "the connection is closed and counted, nobody ends, nothing is unpickled",
        (
            *_of(
                _STRANGERS,
                "noise_by_queue_reaches_nobody",
                "noise_by_stream_reaches_nobody",
                "ten_thousand_mutations_of_real_messages",
                "a_thousand_requests_of_every_kind_with_strange_values",
            ),
            *_of(
                _BROKEN,
                "a_client_that_makes_no_sense_ends_nobody",
                "a_record_that_makes_no_sense_costs_its_connection_and_no_more",
            ),
        ),
    ),
    Row(
        21,
        "strangers: wrong keys, half a greeting, HTTP, connections by the thousand",
        "nothing is parsed or unpickled, calls go on",
        (
            *_of(
                "tests/net/test_floods.py",
                "strangers_take_few_files_and_calls_and_spawns_go_on",
                "a_host_can_be_had_while_strangers_flood_it",
                "calls_take_no_longer_while_strangers_try",
            ),
            *_of("tests/net/test_wire_fuzz.py", "noise_at_a_port_in_use_reaches_nobody"),
            *_of(_JOINING, "a_stranger_s_keys_are_not_let_in"),
            *_of(_CLUSTER, "strangers_at_every_port_reach_nothing"),
        ),
    ),
    Row(
        22,
        "recorded traffic that is sent again; messages of a rank that was replaced",
        "refused",
        (
            *_of("tests/net/test_session.py", "a_record_that_comes_again_is_refused"),
            *_of(
                _JOINING,
                "a_place_is_taken_once_and_then_the_ticket_is_of_no_use",
            ),
            *_of(_STOPPED, "a_message_of_a_rank_that_was_given_up_is_dropped"),
        ),
    ),
    Row(
        23,
        "every listening socket of every process, as /proc tells",
        "loopback only, but for the one that was asked for",
        (
            *_of(
                "tests/security/test_ports.py",
                "nobody_listens_anywhere",
                "a_process_group_listens_on_loopback_only",
            ),
        ),
    ),
    Row(
        24,
        "shared memory is full; a file may not grow; a log folder that is not ours",
        "no SIGBUS: small values travel inline, large ones are refused with the sizes",
        (
            *_of(
                "tests/process/test_large_arguments.py",
                "with_shared_memory_full_large_bytes_travel_inline",
                "with_shared_memory_full_an_argument_travels_inline",
                "what_is_too_large_for_that_is_refused",
            ),
            *_of(
                "tests/data/test_shared.py",
                "a_file_size_limit_is_a_limit_error_and_no_signal",
                "a_full_system_is_a_limit_error",
            ),
        ),
    ),
    Row(
        25,
        "no descriptors are left; no processes may be made",
        "the spawn fails with the limit, what is there goes on, nobody spins",
        (
            *_of(
                "tests/net/test_streams.py",
                "who_connects_to_a_process_without_files_waits_until_it_has_some",
            ),
            *_of("tests/faults/test_limits.py", "a_spawn_beyond_the_limit_of_processes_says_so"),
        ),
    ),
    Row(
        26,
        "10^5 calls in flight, then all cancelled, or their ranks killed",
        "memory stays bounded, order is kept, all end",
        (
            *_of(
                _LOAD,
                "all_are_answered_in_order",
                "all_can_be_cancelled_at_once",
                "all_end_with_the_ranks",
            ),
        ),
    ),
    Row(
        27,
        "the stop button: loops, sleeps, C code, collectives, spawns, unpickling",
        "the prompt is back at once, ranks are free soon, the mesh is usable",
        (
            *_of(
                _INTERRUPT,
                "the_prompt_is_back_at_once_and_the_rank_is_free_soon",
                "queued_calls_are_cancelled_and_never_run",
                "the_spawn_of_a_mesh_can_be_left_and_goes_on",
            ),
            *_of(_COLLECTIVES, "an_interrupt_ends_it_and_the_namespace_stays"),
            *_of(
                _KERNEL_STOP,
                "a_sleeping_cell_stops_at_once",
                "a_cell_blocked_in_a_lock_stops_at_once",
            ),
        ),
        needs="NCCL: a GPU",
    ),
    Row(
        28,
        "storms of the stop button at random moments",
        "no reply is lost, no thread dies, no mesh is half made",
        (
            *_of(
                _KERNEL_STOP,
                "hammering_the_button_loses_neither_the_reply_nor_the_traceback",
            ),
            *_of(_INTERRUPT, "a_storm_leaves_the_mesh_usable"),
        ),
    ),
    Row(
        29,
        "the wall clock jumps by an hour; a rank holds its interpreter; processors are scarce",
        "nobody is called dead or silent",
        (
            *_of(_STOPPED, "a_rank_that_holds_the_gil_is_busy_and_not_silent"),
            *_of(_HOST, "a_rank_that_holds_the_gil_is_not_silent"),
            *_of("tests/notebook/test_hangs.py", "under_load_nobody_is_said_not_to_answer"),
            *_of("tests/faults/test_limits.py", "a_jump_of_the_wall_clock_is_not_noticed"),
        ),
    ),
    Row(
        30,
        "an actor whose constructor fails again and again",
        "it is given up after three failures in ten seconds, with the last error",
        (
            *_of(
                "tests/meshes/test_restarts.py",
                "a_rank_that_fails_too_often_is_lost_and_its_owner_told",
                "an_actor_that_fails_too_often_in_its_process",
            ),
        ),
    ),
    Row(
        31,
        "hosts with another Python, protocol or version of monarch_nb",
        "refused before anything is spawned, both versions named",
        (
            *_of(
                _BROKEN,
                "a_client_of_another_version_is_told_what_differs",
                "a_client_of_another_protocol_is_told_so",
            ),
            *_of(
                _JOINING,
                "a_host_with_another_version_is_told_and_so_is_the_job",
            ),
        ),
    ),
    Row(
        32,
        "a rank stopped in a debugger; it dies there; the kernel restarts",
        "it is debugging, not silent; nothing is left of it",
        (
            *_of(
                "tests/kernel/test_debugged_faults.py",
                "a_rank_that_dies_while_it_is_stopped",
                "one_of_all_ranks_dies",
                "the_kernel_restarts_while_ranks_are_stopped",
            ),
            *_of(_COLLECTIVES, "time_in_a_debugger_does_not_count"),
        ),
    ),
    Row(
        33,
        "a page is closed, loaded again, opened twice",
        "it gets the state of now; nothing is sent that nobody asked for",
        (
            *_of(
                "tests/notebook/view/browser/test_showing.py",
                "two_displays_are_two_views_of_one_model",
                "a_page_that_is_loaded_again_gets_the_state_of_now_while_a_cell_blocks",
                "nobody_is_told_anything_that_nobody_asked_for",
            ),
        ),
    ),
    Row(
        34,
        "a login that ends, a step of Slurm that dies, a job that is cancelled",
        "the host is named, with the last words of what started it",
        (
            *_of(
                _CLUSTER,
                "a_login_that_ends_takes_no_host_along_that_is_reached_without_it",
                "the_ranks_of_a_host_that_no_login_reaches_again_go_beside_others",
            ),
            *_of(
                "tests/clusters/test_slurm_job.py",
                "what_cancels_it_from_outside_is_told_with_the_host",
                "a_step_that_dies_in_an_allocation_is_told",
            ),
        ),
    ),
)
