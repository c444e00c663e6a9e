#!/usr/bin/env python3
"""Programs that end in an order that nobody would choose; each comes to its end, with status 0: odd_ends.py BIN_FOLDER"""

import harness


class odd_ends(harness.cluster_test):
    def ends(self, mode, *cluster):
        p = self.run_program("odd_ends", mode, *cluster)
        self.assertEqual((p.code, p.err), (0, ""), f"{mode}: {p.tail()}")
        self.assertIn("done", p.out)

    def test_PX_1_sessions_with_static_storage_end_after_main(self):
        for mode in ("idle", "static", "global"):
            self.ends(mode)

    def test_topologies_with_static_storage_end_after_main(self):
        self.ends("topology")

    def test_PX_1_a_session_may_end_in_another_thread_than_those_that_have_used_it(self):
        self.ends("moved")

    def test_what_a_session_gave_out_ends_with_it_and_says_so(self):
        self.ends("order")

    def test_a_session_may_end_while_threads_run_graphs(self):
        for _ in range(3):
            self.ends("busy")

    def test_PZ_1_a_child_of_fork_ends_and_is_told_that_the_session_is_not_its_own(self):
        self.ends("fork")
        self.ends("fork_static")

    def test_so_it_is_for_members_of_a_cluster(self):
        self.start_nodes(1)
        for mode in ("static", "global", "busy", "order", "fork"):
            self.ends(mode, self.cluster)


if __name__ == "__main__":
    harness.main()
