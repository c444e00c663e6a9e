// A pipeline of four streams with every order that it needs, and ten mistakes in it: found by the
// checker under every seed, and by wrong results under some.

#include "troupe/devices/async_host/async_host_chip.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <vector>

using namespace troupe;

namespace {

enum class mistake : std::uint8_t {
  none,
  compute_without_copy_in,
  copy_out_before_compute,
  credit_without_the_consumers_event,
  freed_too_early_to_another_stream,
  host_reads_without_completion,
  event_recorded_before_the_work,
  event_of_the_wrong_stream,
  waits_for_an_older_event,
  reused_after_one_of_two_consumers,
  written_in_place_while_another_reads,
};

constexpr std::array<const char*, 11> names = {"none",
                                               "compute without copy in",
                                               "copy out before compute",
                                               "credit without the consumer's event",
                                               "freed too early to another stream",
                                               "host reads without completion",
                                               "event recorded before the work",
                                               "event of the wrong stream",
                                               "waits for an older event",
                                               "reused after one of two consumers",
                                               "written in place while another reads"};

constexpr std::size_t items = 12, credits = 2, numbers = 16;
constexpr std::size_t size_bytes = numbers * sizeof(std::uint32_t);

std::uint32_t* as_numbers(std::span<std::byte> b) {
  return reinterpret_cast<std::uint32_t*>(b.data());
}

struct outcome {
  std::uint64_t found = 0;
  std::size_t wrong = 0;
  std::string first;
};

// Item i is a buffer of i + 1; in -> x; a: y = 3 x; b: z = x + y, by way of scratch memory that is
// allocated and freed each time; out: z -> the host. Each has two buffers, which are written again
// after the events of all that read them.
outcome run(mistake m, std::uint64_t seed, bool checked, bool threaded = false) {
  order_checker checker;
  async_host_chip chip({.seed = seed,
                        .threaded = threaded,
                        .delay_max_us = 50,
                        .checker = checked ? &checker : nullptr});
  const auto gpu = chip.make_device("gpu:0");
  auto in = *gpu->make_stream(stream_kind::copy_in), a = *gpu->make_stream(stream_kind::compute),
       b = *gpu->make_stream(stream_kind::compute), out = *gpu->make_stream(stream_kind::copy_out);
  const auto pinned = [&](std::size_t n) {
    std::vector<device_memory> v;
    for (std::size_t i = 0; i < n; ++i) v.push_back(*gpu->allocate_pinned(size_bytes));
    return v;
  };
  auto sources = pinned(items), results = pinned(items);
  struct port {
    std::array<device_memory, credits> buffers;
    std::array<std::vector<device_event>, credits> returned;
  } x, y, z;
  for (std::size_t k = 0; k < credits; ++k) {
    x.buffers[k] = *in->allocate(size_bytes, "x");
    y.buffers[k] = *a->allocate(size_bytes, "y");
    z.buffers[k] = *b->allocate(size_bytes, "z");
  }
  const auto bytes = [](device_memory d) { return std::span<std::byte>(d.bytes, d.size_bytes); };
  const auto fine = [](const result<void>& r) { BOOST_REQUIRE(bool(r)); };
  const auto before_writing = [&](port& p, device_stream& s, std::size_t k,
                                  bool forgets_last = false) {
    if (forgets_last && !p.returned[k].empty()) p.returned[k].pop_back();
    for (const auto& e : p.returned[k]) fine(s.wait(e));
    p.returned[k].clear();
  };
  const auto some = [&] {
    if (!threaded) chip.step_some();
  };
  outcome o;
  device_event older;
  std::atomic<bool> completed = false;
  for (std::size_t i = 0; i < items; ++i) {
    const auto k = i % credits;
    for (std::size_t n = 0; n < numbers; ++n)
      as_numbers(bytes(sources[i]))[n] = static_cast<std::uint32_t>(100 * (i + 1) + n);
    const auto xs = bytes(x.buffers[k]), ys = bytes(y.buffers[k]), zs = bytes(z.buffers[k]);
    some();

    before_writing(x, *in, k, m == mistake::reused_after_one_of_two_consumers);
    device_event early;
    if (m == mistake::event_recorded_before_the_work) early = *in->record();
    fine(in->copy("copy in", xs, memory_kind::device, bytes(sources[i]), memory_kind::pinned));
    auto copied = early ? early : *in->record();
    if (m == mistake::event_of_the_wrong_stream) copied = *out->record();
    if (m == mistake::waits_for_an_older_event) std::swap(copied, older);
    some();

    if (m != mistake::compute_without_copy_in) fine(a->wait(copied));
    before_writing(y, *a, k);
    const std::span<const std::byte> x_read = xs;
    const std::span<std::byte> y_write = ys;
    fine(a->enqueue("triple", {{&x_read, 1}, {&y_write, 1}}, [xs, ys]() -> result<void> {
      for (std::size_t n = 0; n < numbers; ++n) as_numbers(ys)[n] = 3 * as_numbers(xs)[n];
      return {};
    }));
    const auto tripled = *a->record();
    some();

    // Scratch of b's. The mistake: a frees what b still uses, and takes it for itself.
    fine(b->wait(copied));
    fine(b->wait(tripled));
    before_writing(z, *b, k);
    auto scratch = *b->allocate(size_bytes, "scratch");
    const auto ss = bytes(scratch);
    const std::array<std::span<const std::byte>, 2> xy = {xs, ys};
    const std::span<std::byte> s_write = ss, z_write = zs;
    const std::span<const std::byte> s_read = ss;
    fine(b->enqueue("add", {xy, {&s_write, 1}}, [xs, ys, ss]() -> result<void> {
      for (std::size_t n = 0; n < numbers; ++n)
        as_numbers(ss)[n] = as_numbers(xs)[n] + as_numbers(ys)[n];
      return {};
    }));
    fine(b->enqueue("move", {{&s_read, 1}, {&z_write, 1}}, [ss, zs]() -> result<void> {
      std::copy(as_numbers(ss), as_numbers(ss) + numbers, as_numbers(zs));
      return {};
    }));
    const auto added = *b->record();
    if (m == mistake::freed_too_early_to_another_stream) {
      a->free(scratch);
      const auto theirs = *a->allocate(size_bytes, "a's own");
      fine(a->fill_zero("clear a's own", bytes(theirs)));
      a->free(theirs);
    } else {
      b->free(scratch);
    }
    if (m == mistake::written_in_place_while_another_reads)
      fine(a->fill_zero("clear x in place", xs));  // b reads x
    x.returned[k] = {*a->record(), added};
    y.returned[k] = {added};
    some();

    if (m != mistake::copy_out_before_compute) fine(out->wait(added));
    fine(out->copy("copy out", bytes(results[i]), memory_kind::pinned, zs, memory_kind::device));
    if (m != mistake::credit_without_the_consumers_event) z.returned[k] = {*out->record()};
    // The host hears of the end alone: what it hears on the way orders all that it enqueues
    // afterwards, and would hide the mistakes under some seeds.
    if (i + 1 == items)
      fine(out->call_host([&completed] { completed.store(true, std::memory_order_release); }));
    some();

    const auto check = [&](std::size_t j) {
      const auto r = bytes(results[j]);
      const std::span<const std::byte> read = r;
      checker.host_uses("read the result", {{&read, 1}, {}});
      for (std::size_t n = 0; n < numbers; ++n)
        if (as_numbers(r)[n] != 4 * (100 * (j + 1) + n)) {
          ++o.wrong;
          return;
        }
    };
    if (m == mistake::host_reads_without_completion) check(i);
    if (i + 1 == items) {
      if (!threaded) chip.step_all();
      fine(out->synchronize());
      BOOST_REQUIRE(completed.load(std::memory_order_acquire));
      if (m != mistake::host_reads_without_completion)
        for (std::size_t j = 0; j < items; ++j) check(j);
    }
  }
  for (auto* s : {in.get(), a.get(), b.get(), out.get()}) fine(s->synchronize());
  if (checked) {
    o.found = checker.found();
    if (const auto r = checker.reports(); !r.empty()) o.first = r.front().text();
  }
  for (auto* v : {&sources, &results})
    for (const auto& d : *v) gpu->free_pinned(d);
  return o;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(order_checker)

BOOST_AUTO_TEST_CASE(
    OC_1_a_pipeline_with_every_order_that_it_needs_has_no_report_and_right_results_under_200_seeds) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const auto o = run(mistake::none, seed, true);
    BOOST_REQUIRE_MESSAGE(o.found == 0, "seed " << seed << ": " << o.first);
    BOOST_REQUIRE_MESSAGE(o.wrong == 0, "seed " << seed);
  }
}

BOOST_AUTO_TEST_CASE(OC_1_so_it_is_with_threads) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const auto o = run(mistake::none, seed, true, true);
    BOOST_REQUIRE_MESSAGE(o.found == 0 && o.wrong == 0, "seed " << seed << ": " << o.first);
  }
}

BOOST_AUTO_TEST_CASE(
    OC_2_each_of_ten_planted_mistakes_is_found_under_every_seed_and_shows_in_results_under_some) {
  std::cout << std::left << std::setw(40) << "mistake" << std::setw(20) << "found by checker"
            << "first wrong result at seed; wrong under\n";
  for (std::uint8_t i = 1; i < names.size(); ++i) {
    std::uint64_t found = 0, wrong = 0, first = 0;
    std::string text;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
      const auto o = run(mistake{i}, seed, true);
      found += o.found != 0 ? 1 : 0;
      if (seed == 1) text = o.first;
      if (run(mistake{i}, seed, false).wrong != 0 && wrong++ == 0) first = seed;
    }
    std::cout << std::left << std::setw(40) << names[i] << std::setw(20)
              << std::to_string(found) + " of 200" << first << "; " << wrong << " of 200\n    "
              << text << "\n";
    BOOST_TEST(found == 200u, names[i] << ": found under " << found << " seeds");
    BOOST_TEST(wrong > 0u, names[i] << ": never a wrong result");
  }
}

BOOST_AUTO_TEST_SUITE_END()
