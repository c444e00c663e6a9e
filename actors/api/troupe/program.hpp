#pragma once
// What programs that train have in common: their flags, progress on a terminal, Ctrl-C, losses,
// events and weights in files, and text for people; and what those with a loop of their own have.
// Link troupe::program beside troupe::troupe; a program with flags of its own includes
// <CLI/CLI.hpp> (CLI11).
//
//   troupe::progress_bar bar(100, /*is_quiet=*/true);
//   for (int i = 1; i <= 100; ++i) bar.show(i, "of an example");
//   std::cout << troupe::format_bytes(3u << 20) << "\n";

#include "troupe/actors/program/cluster_flags.hpp"
#include "troupe/actors/program/cluster_program.hpp"
#include "troupe/actors/program/device_flags.hpp"
#include "troupe/actors/program/output.hpp"
#include "troupe/actors/program/progress_bar.hpp"
#include "troupe/actors/program/topology_flags.hpp"
#include "troupe/actors/program/training_flags.hpp"
#include "troupe/actors/program/training_report.hpp"
#include "troupe/devices/files/signals.hpp"
#include "troupe/runtime/text/byte_size.hpp"
#include "troupe/runtime/text/duration.hpp"
#include "troupe/runtime/text/printable.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/version.hpp"
