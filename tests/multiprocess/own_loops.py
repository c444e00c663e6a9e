#!/usr/bin/env python3
"""Programs with loops of their own, on variables of a store, here and over nodes: own_loops.py BIN_FOLDER"""

import signal

import harness

USAGE, UNREACHABLE = 2, 3


class own_loops(harness.cluster_test):
    def finish(self, program, *arguments, code=0):
        p = self.run_program(program, *arguments, "--json")
        self.assertEqual(p.code, code, f"{program} {' '.join(map(str, arguments))}\n{p.tail()}")
        return self.json_of(p) if code == 0 else p.err

    def test_two_optimizers_take_turns_with_equal_bits_everywhere(self):
        self.start_nodes(2)
        for how in (("--steps", 200), ("--steps", 60, "--accumulate", 3, "--batch", 17)):
            here = self.finish("train_gan", *how)
            for more in (("--threads", 2), ("--cluster", self.cluster),
                         ("--cluster", self.cluster, "--generator-on", "/job:client/task:0"),
                         ("--cluster", self.cluster, "--generator-on", "/job:worker/task:1")):
                self.assertEqual(self.finish("train_gan", *how, *more), here, more)

    def test_points_come_to_the_ring(self):
        told = self.finish("train_gan", "--steps", 2000)
        self.assertLess(told["mean_distance"], 0.25)

    def test_a_killed_node_costs_a_step_which_is_made_again(self):
        self.strike(signal.SIGKILL)

    def test_a_stopped_node_costs_a_step_which_is_made_again(self):
        self.lease = None  # it is noticed by that
        self.strike(signal.SIGSTOP)

    def strike(self, how):
        steps = ("--steps", 4_000)
        here = self.finish("train_gan", *steps)
        nodes = [self.start_node("--label", "net=both") for _ in range(2)]
        self.wait_nodes(2)
        p = self.start("train_gan", *steps, "--json", "--cluster", self.cluster,
                       "--generator-on", "/label:net=both", "--discriminator-on", "/label:net=both")
        self.assertIsNotNone(p.line(r"^step \d+:", "err"), p.tail())
        busy = self.job("gan")["participants"]
        struck = next(n for n in nodes if self.name_of(n) in busy)
        struck.send(how)
        self.assertEqual(p.wait(), 0, p.tail())
        told = self.json_of(p)
        self.assertGreaterEqual(told.pop("made_again"), 1, p.tail())
        here.pop("made_again")
        self.assertEqual(told, here)

    def test_a_pole_is_balanced_by_players_and_a_learner(self):
        self.start_nodes(3)
        for where in ((), ("--cluster", self.cluster, "--policy-on", "/job:worker/task:0", "--learner-on", "/job:worker/task:1")):
            # Threads race, so a run may take longer to solve it than it has.
            p = self.run_program("play_cartpole", *where, "--episodes", 2000, "--json")
            self.assertIn(p.code, (0, 1), p.tail())
            told = self.json_of(p)
            self.assertEqual(told["solved"], p.code == 0, p.tail())
            self.assertGreater(told["mean_return"], 60, p.tail())  # by chance: 22
            print(f"played {told}", flush=True)

    def test_what_is_wrong_is_told(self):
        self.assertRegex(self.finish("train_gan", "--generator-on", "/job:moon", code=USAGE),
                         r"^train_gan: \S*train_gan\.cpp:\d+: there is no task for device '/job:moon'")
        self.assertIn("--batch", self.finish("train_gan", "--batch", 0, code=USAGE))
        self.finish("play_cartpole", "--cluster", "nobody-is-here", "--timeout", "200ms", code=UNREACHABLE)
        self.assertRegex(self.finish("train_gan", "--steps", 10, "--save", "/no/such/folder/w.safetensors", code=6),
                         r"(?m)^train_gan: .*/no/such/folder")


if __name__ == "__main__":
    harness.main()
