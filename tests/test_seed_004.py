"""Seed 004, section 7 and its inner conditions: `CONDITIONS` says which tests show each.

(c) to (e) are figures, not tests: they belong to the measurements.
"""

from __future__ import annotations

from spots import missing

CONDITIONS = {
    "7 (a): nobody looks again and again while there is nothing": (
        "test_mesh_lifecycle.py::test_idle_nodes_do_nothing",
        "test_mesh_lifecycle.py::test_nodes_that_wait_do_nothing_meanwhile",
        "test_standby.py::test_with_nothing_to_do_it_sleeps_in_one_untimed_call",
        "test_leading.py::test_idle_leaders_sleep_in_one_call_each",
    ),
    "7 (b): 64 records that wait are claimed in one rotation": (
        "test_rotation.py::test_one_rotation_takes_64_records_and_looks_again_at_once",
    ),
    "7 (b): with fewer permits that many are claimed, the rest stays where it is, none is refused or dropped": (
        "test_rotation.py::test_with_ten_permits_ten_are_claimed_and_the_rest_stays_where_it_is",
        "test_rotation.py::test_what_has_no_permit_stays_in_zeromq_and_comes_in_order_when_permits_return",
    ),
    "3: from E1 to E4 no hand-over, and no lane but the selector's and the operations', each once": (
        "test_trace.py::test_from_the_call_to_the_socket_there_is_no_hand_over_and_two_lanes_at_most",
    ),
    "3: no timer per request": (
        "test_trace.py::test_from_the_call_to_the_socket_there_is_no_hand_over_and_two_lanes_at_most",
        "test_operations.py::test_only_a_deadline_before_the_one_being_watched_wakes_the_watcher",
    ),
    "3: no mailbox or thread between the end of an operation and who waits": (
        "test_mesh_blocked.py::test_timeouts_replies_new_peers_and_drain_go_on",
        "test_trace.py::test_an_answer_goes_to_who_waits_with_one_hand_over_or_none",
        "test_leading.py::test_a_request_is_read_by_the_worker_that_runs_it_and_its_answer_by_the_caller",
    ),
    "3: registered before it is submitted, ended once": (
        "test_trace.py::test_a_request_passes_every_stage_once_and_in_order",
        "test_operations.py::test_exactly_one_of_reply_error_deadline_cancel_loss_and_close_ends_an_operation",
    ),
    "3: the payload is written once": ("test_trace.py::test_a_payload_is_written_once_on_each_way_and_cut_out_once",),
    "3: a hundred calls of one caller arrive in their order": (
        "test_mesh.py::test_messages_of_one_owner_are_handled_in_the_callers_order",
    ),
    "4: an owner that was empty is given to the workers once, one that was not is not": (
        "test_trace.py::test_a_record_gets_no_task_and_no_hand_over_but_the_worker_that_is_woken",
        "test_trace.py::test_an_owner_with_work_is_not_woken_again",
    ),
    "4: no task per record": ("test_trace.py::test_a_record_gets_no_task_and_no_hand_over_but_the_worker_that_is_woken",),
    "4: one hand-over at most from the claim to the handler, none from there to the answer": (
        "test_trace.py::test_a_record_gets_no_task_and_no_hand_over_but_the_worker_that_is_woken",
        "test_trace.py::test_an_answer_goes_to_who_waits_with_one_hand_over_or_none",
    ),
    "4: decoded on the owner's turn, once": (
        "test_trace.py::test_a_request_passes_every_stage_once_and_in_order",
        "test_trace.py::test_a_payload_is_encoded_once_and_decoded_once",
    ),
    "4: management once per rotation, bounded": (
        "test_rotation.py::test_every_port_is_managed_once_per_rotation_with_or_without_permits",
        "test_rotation.py::test_management_that_takes_long_goes_on_with_the_next_port_in_the_next_rotation",
    ),
    "4: control records keep no permit and wait behind no handler": (
        "test_rotation.py::test_what_is_no_application_record_keeps_no_permit",
        "test_mesh_blocked.py::test_timeouts_replies_new_peers_and_drain_go_on",
    ),
    "4: without a permit completions, deadlines and the end go on": (
        "test_mesh_blocked.py::test_with_no_permit_left_completions_and_new_peers_go_on",
        "test_rotation.py::test_without_a_permit_no_data_socket_is_waited_for_and_the_first_returned_brings_all_back",
    ),
    "4: nothing is planned or read per record, and no thread changes, to make what a handler needs": (
        "test_dependencies.py::test_nothing_is_planned_or_read_per_record_and_no_thread_changes",
    ),
    "4: a scope per dispatch, closed once, after the handler": (
        "test_dependencies.py::test_each_dispatch_has_a_scope_of_its_own_closed_after_the_handler",
    ),
    "5: the three APIs share the stages": ("test_trace.py::test_a_request_passes_every_stage_once_and_in_order",),
}


def test_every_condition_has_its_tests() -> None:
    assert missing([test for tests in CONDITIONS.values() for test in tests], __file__) == []
