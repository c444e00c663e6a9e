#!/usr/bin/env python3
"""Towers of one graph, on several devices, learn what one tower does, to rounding: towers.py BIN_FOLDER"""

import re
import sys

import harness
from bit_equality import variables


class towers(harness.cluster_test):
    def setUp(self):
        super().setUp()
        # 420: the last batch of an epoch is smaller, also of two workers.
        self.model = ("--data", self.make_data(samples=420, test_samples=150), "--epochs", "6", "--learning-rate", "0.02")

    def finish(self, program, *arguments):
        saved, losses = self.path("saved"), self.path("losses")
        p = self.run_program(program, *self.model, *arguments, "--save", saved, "--losses", losses, "--json")
        self.assertEqual(p.code, 0, f"{program} {' '.join(map(str, arguments))}\n{p.tail()}")
        with open(losses) as f:
            return self.json_of(p), variables(saved), [float(line.split(",")[1]) for line in f]

    def check_rounding(self, what, one, many):
        self.assertEqual(list(one[1]), list(many[1]), what)
        weights = max(max(abs(a - b) for a, b in zip(exact, many[1][v])) / max(map(abs, exact)) for v, exact in one[1].items())
        self.assertEqual(len(one[2]), len(many[2]), what)
        losses = max(abs(a - b) / a for a, b in zip(one[2], many[2]))
        print(f"{what}: weights differ by {weights:.1e} of a variable's largest element, losses by {losses:.1e}", file=sys.stderr)
        self.assertLessEqual(weights, 1e-5, what)
        self.assertLessEqual(losses, 1e-5, what)
        self.assertEqual(one[0]["test_accuracy"], many[0]["test_accuracy"], what)

    def test_any_number_of_towers_learns_what_one_does(self):
        for batch in (100, 127):
            plain = self.finish("train_classifier", "--batch", batch)
            one = self.finish("train_towers", "--batch", batch, "--towers", 1, "--threads", 2)
            self.assertLess(one[2][-1], one[2][0], "it does not learn")
            self.check_rounding(f"batch {batch}, train_classifier and one tower", plain, one)
            for count in (2, 3):
                many = self.finish("train_towers", "--batch", batch, "--towers", count, "--threads", 2)
                self.check_rounding(f"batch {batch}, one tower and {count}", one, many)

    def test_towers_have_the_same_bits_here_and_over_nodes(self):
        self.start_nodes(3, "--threads", "2")
        how = ("--batch", 70, "--workers", 2, "--shards", 2)
        one = self.finish("train_towers", *how, "--towers", 1, "--threads", 2)
        two = self.finish("train_towers", *how, "--towers", 2, "--threads", 2)
        self.check_rounding("two workers, one tower and two", one, two)
        for more in (("--threads", 1), ("--threads", 4), ("--cluster", self.cluster), ("--cluster", self.cluster, "--update", "allreduce")):
            with self.subTest(more=more):
                self.assertEqual(self.finish("train_towers", *how, "--towers", 2, *more)[0]["weights_hash"], two[0]["weights_hash"])

    def test_each_tower_is_on_its_stream_and_variables_are_there_once(self):
        graph = self.path("towers.troupe")
        p = self.run_program("train_towers", *self.model, "--save-graph", graph)
        self.assertEqual(p.code, 0, p.tail())
        told = self.run_program("troupe", "plan", graph).out
        for t in (0, 1):
            self.assertRegex(told, rf"worker/0/tower_{t}/dense_1/\S+ .* stream {t}, .*its device '/cpu:{t}'")
        self.assertEqual(len(set(re.findall(r"shard/0/(\S*dense_\d/(?:weights|bias)) +shard ", told))), 6, told)

    def test_more_towers_than_threads_take_turns_and_say_so(self):
        p = self.run_program("train_towers", *self.model, "--towers", 5, "--threads", 2, "--json")
        self.assertEqual(p.code, 0, p.tail())
        self.assertIn("train_towers: 5 towers take turns on 2 threads (cpu:N is taken modulo --threads): with --threads 5 each has one", p.lines["err"])

    def test_mistakes_are_told_in_a_line(self):
        cases = ((("--towers", 5, "--batch", 3), "--towers 5 with --batch 3: there are towers without an image: give 3 towers at most, or a larger batch"),
                 (("--towers", 0), "--towers"),
                 (("--workers", 11, "--batch", 38), "--workers 11 with --batch 38: the last batch of an epoch has 2 of the 420 images"))
        for more, says in cases:
            p = self.run_program("train_towers", *self.model, *more)
            self.assertEqual(p.code, 2, p.tail())
            self.assertEqual(len(p.lines["err"]), 1, p.err)
            self.assertIn(says, p.err)


if __name__ == "__main__":
    harness.main()
