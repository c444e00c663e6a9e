// Tensors over a link from one process to another, beside blocking TCP that cycles over as many
// buffers at both ends, and the CPU seconds that both processes spend on a gigabyte.

#include "tools/troupe-bench/bare_tcp.hpp"
#include "tools/troupe-bench/link_end.hpp"
#include "tools/troupe-bench/measure.hpp"
#include "tools/troupe-bench/peer.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace troupe {

namespace {

struct ends {
  std::unique_ptr<peer_process> peer;
  std::unique_ptr<bare_client> bare;
  std::unique_ptr<link_end> link;
};

result<ends> open_ends(link_guard guard) {
  ends e;
  auto peer = peer_process::start({"link", guard == link_guard::checksums ? "on"
                                           : guard == link_guard::tls     ? "tls"
                                                                          : "off"});
  if (!peer) return peer.error();
  e.peer = std::move(*peer);
  unsigned bare_port = 0, link_port = 0;
  if (std::sscanf(e.peer->ready().c_str(), "%u %u", &bare_port, &link_port) != 2)
    return error(error_code::failed, "the other process said " + e.peer->ready());
  auto bare = bare_client::connect(static_cast<std::uint16_t>(bare_port));
  if (!bare) return bare.error();
  e.bare = std::move(*bare);
  e.link = std::make_unique<link_end>(link_side::sender, guard);
  if (auto connected = e.link->connect(static_cast<std::uint16_t>(link_port)); !connected)
    return connected.error();
  return e;
}

result<std::uint64_t> buffers_there(ends& e, std::size_t i) {
  auto text = e.peer->ask(fmt::format("buffers {}", i));
  if (!text) return text.error();
  return std::strtoull(text->c_str(), nullptr, 10);
}

// Gigabytes a second; appends the CPU seconds that both processes took for one.
result<double> timed(ends& e, double gigabytes, std::vector<double>& cpu,
                     const std::function<result<double>()>& run) {
  const auto cpu_now = [&]() -> result<double> {
    auto there = e.peer->cpu_seconds();
    return there ? result<double>(*there + own_cpu_seconds()) : there;
  };
  const auto before = cpu_now();
  if (!before) return before;
  const auto seconds = run();
  if (!seconds) return seconds;
  const auto after = cpu_now();
  if (!after) return after;
  cpu.push_back((*after - *before) / gigabytes);
  return gigabytes / *seconds;
}

result<void> measure(const bench_options& o, bench_report& report, ends& e, std::size_t i,
                     link_guard guard) {
  const auto& c = stream_cases[i];
  const auto count = o.is_quick ? std::uint64_t{2} : c.count;
  const auto gigabytes = double(c.bytes) * double(count) * 1e-9;
  std::vector<double> our_cpu, their_cpu;
  auto figures = take_turns(
      o.runs, {[&] {
                 return timed(e, gigabytes, our_cpu,
                              [&]() -> result<double> { return e.link->stream(i, count); });
               },
               [&]() -> result<double> {
                 auto there = buffers_there(e, i);  // the link has run by now
                 if (!there) return there.error();
                 return timed(e, gigabytes, their_cpu, [&] {
                   return e.bare->stream(c.bytes, count, link_end::buffers_sent_from(i), *there);
                 });
               }});
  if (!figures) return figures.error();
  // Of the turn that does not count.
  for (auto* cpu : {&our_cpu, &their_cpu}) cpu->erase(cpu->begin());
  const auto goal = guard == link_guard::tls         ? ""
                    : c.bytes < (64 << 10)           ? ""
                    : c.bytes < (1 << 20)            ? ">= 0.7"
                    : guard == link_guard::checksums ? ">= 0.75"
                                                     : ">= 0.9";
  const auto what = fmt::format("{}{}", c.name,
                                guard == link_guard::checksums ? ", checksums"
                                : guard == link_guard::tls     ? ", TLS"
                                                               : "");
  report.add({"stream", what, "GB/s", (*figures)[0], 4, "bare TCP", (*figures)[1],
              bench_ratio::ours_to_baseline, goal});
  report.add({"stream", what + ", CPU of both", "s/GB", our_cpu, 4, "bare TCP", their_cpu,
              bench_ratio::ours_to_baseline, ""});
  return {};
}

}  // namespace

result<void> bench_stream(const bench_options& o, bench_report& report) {
  const std::vector<link_guard> guards =
      o.has_tls ? std::vector{link_guard::tls}
                : std::vector{link_guard::checksums, link_guard::nothing};
  for (const auto guard : guards) {
    auto e = open_ends(guard);
    if (!e) return e.error();
    for (std::size_t i = 0; i < stream_cases.size(); ++i)
      if (auto done = measure(o, report, *e, i, guard); !done) return done;
  }
  return {};
}

}  // namespace troupe
