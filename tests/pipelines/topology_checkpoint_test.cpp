// Checkpoints of topologies: whatever is kept when, a topology that goes on from it makes what it
// would have made; what cannot be kept is told before anything runs.

#include "troupe/runtime/flow/topology_checkpoint.hpp"

#include "tests/devices/temporary_folder.hpp"
#include "troupe/actors/flow/topology.hpp"
#include "troupe/devices/files/host_disk.hpp"
#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/file_stages.hpp"
#include "troupe/runtime/flow/flow.hpp"
#include "troupe/runtime/flow/function_id.hpp"
#include "troupe/runtime/flow/resource.hpp"
#include "troupe/runtime/flow/sample_stages.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

using namespace troupe;
using test::put;
using test::temporary_folder;
using test::text_of;
namespace fs = std::filesystem;

namespace {

std::string contents(const std::string& folder) {
  std::string all;
  std::map<std::string, std::string> files;
  for (const auto& f : fs::directory_iterator(folder))
    files[f.path().filename().string()] = text_of(f.path().string());
  for (const auto& [name, text] : files) all += "== " + name + "\n" + text;
  return all;
}

struct total {
  std::uint64_t state = 0;
  void operator()(const std::string&) { ++state; }
  std::pair<std::string, std::uint64_t> finish(const std::string& key) { return {key, state}; }
};
struct numbered {
  std::uint64_t state = 0;
  std::string operator()(const std::string& s) { return std::to_string(state++) + " " + s; }
};
struct unseen {
  std::set<std::string> state;
  bool operator()(const std::string& s) { return state.insert(s.substr(0, 9)).second; }
};
struct counts_up {
  int most;
  int state = 0;
  std::optional<int> operator()() { return state < most ? std::optional(state++) : std::nullopt; }
};
// Of a topology that ends when it was kept, however long that takes.
constexpr int endless = std::numeric_limits<int>::max();
generator<int> twice(int x) {
  co_yield x;
  co_yield -x;
}
std::string text_of_pair(const std::tuple<int, std::string>& p) {
  return std::to_string(std::get<0>(p)) + ":" + std::get<1>(p);
}

using describing = std::function<void(flow_graph&, const std::string& in, const std::string& out)>;

// Lines, by replicas, by key, with state, with some that fail.
void lines_of_files(flow_graph& g, const std::string& in, const std::string& out) {
  const auto lines = read_lines(g, in + "/*.txt");
  const auto kept = map(lines,
                        [](const std::string& s) -> result<std::string> {
                          if (s.ends_with("7")) return error(error_code::failed, "a seven");
                          return "<" + s + ">";
                        },
                        {.replicas = 3, .on_error = skip()});
  write_csv(map(kept, numbered{}), out + "/numbered.csv");
  write_csv(partition_by(kept, [](const std::string& s) { return s.substr(0, 2); }, total{},
                         {.replicas = 2}),
            out + "/totals.csv");
  write_json_lines(unbatch(batch(kept, {.count = 7})), out + "/lines.jsonl");
  write_csv(filter(lines, unseen{}), out + "/unseen.csv");
  write_csv(unbatch(batch(lines, {.count = up_to(5)})), out + "/few.csv");
}
// Branches that are joined again, of sources of different lengths, one of which is over soon.
void joins(flow_graph& g, const std::string& in, const std::string& out) {
  const auto numbers = source(g, counts_up{60});
  const auto lines = read_lines(g, in + "/a.txt");
  const auto more = from(g, std::vector<int>{1000, 1001, 1002});
  const auto doubled = map(numbers, twice);
  write_csv(map(zip(doubled, lines), text_of_pair), out + "/zipped.csv");
  write_csv(interleave(std::vector{numbers, more}), out + "/turns.csv");
  const auto pairs =
      join_by(numbers, doubled, [](int x) { return x % 10; }, [](int x) { return x % 7; });
  write_csv(map(pairs, [](const std::pair<int, int>& p) { return p.first * 1000 + p.second; }),
            out + "/pairs.csv");
  write_csv(map(window(doubled, {.count = 5, .step = 2}),
                [](const std::vector<int>& v) { return v.front() + 31 * v.back(); }),
            out + "/windows.csv");
}
// Items that go round a loop until they are large enough; rows, and what is told of bad ones.
void loops_and_letters(flow_graph& g, const std::string& in, const std::string& out) {
  const auto begin = source(g, counts_up{50});
  const auto back = feedback<int>(g, {.credit = 4});
  const auto [large, small] = split(map(merge(begin, back), [](int x) { return x * 2 + 1; }),
                                    [](const int& x) { return x > 40; });
  close(back, small);
  write_csv(large, out + "/large.csv");
  const auto lost = dead_letters(g);
  const auto some = map(read_csv(g, in + "/b.txt"),
                        [](const csv_line& line) -> result<std::string> {
                          if (line.cells[0].size() % 3 == 0)
                            return error(error_code::failed, "of three");
                          return line.cells[0];
                        },
                        {.on_error = skip(), .dead_letters = lost});
  write_csv(some, out + "/some.csv");
  write_csv(lost, out + "/lost.csv");
}
// Samples in an order of their own; tensors; a flow that has enough.
void samples_and_tensors(flow_graph& g, const std::string&, const std::string& out) {
  std::vector<float> data;
  for (int i = 0; i < 40; ++i) data.push_back(float(i));
  const auto all = samples(g, data, {.seed = 3, .epochs = 3});
  const auto values = map(all, [](const sample<float>& s) { return s.value; });
  write_csv(shuffle(values, {.seed = 5, .hold = 16}), out + "/shuffled.csv");
  write_npy(map(values, [](float v) { return tensor::of({v, -v}, {2}); }), out + "/all.npy");
  write_csv(first(values, 50), out + "/first.csv");
  const auto [small, large] = split(values, [](const float& v) { return v < 10; });
  write_csv(merge(small, map(large, [](float v) { return v + 100; })), out + "/merged.csv");
}

// Runs it in one thread, keeps it now and then, and loses it now and then; as often as it takes.
void run_with_losses(const describing& describe, const std::string& in, const std::string& out,
                     std::uint64_t seed, std::uint64_t& kept_times, std::uint64_t& lost_times) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> kept;
  std::int64_t now = 1'000'000'000;
  const std::function<std::int64_t()> clock = [&] { return now += 1000; };
  for (int life = 0; life < 200; ++life) {
    flow_graph g;
    describe(g, in, out);
    BOOST_TEST_REQUIRE(bool(g.check()));
    const auto can = check_checkpoint(g);
    BOOST_TEST_REQUIRE(bool(can), (can ? "" : can.error().text()));
    std::optional<troupe::topology_checkpoint> c;
    if (!kept.empty()) {
      auto read = read_checkpoint(kept, "it");
      BOOST_TEST_REQUIRE(bool(read), (read ? "" : read.error().text()));
      c = std::move(*read);
    }
    flow_group whole(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &g),
                     c ? over_in(*c) : std::vector<bool>());
    BOOST_TEST_REQUIRE(!whole.failure());
    if (c) {
      const auto ok = whole.go_on_from(*c);
      BOOST_TEST_REQUIRE(bool(ok), (ok ? "" : ok.error().text()));
    }
    bool is_lost = false;
    while (!is_lost) {
      const auto until = now + std::int64_t(1000 * (1 + random() % 12));
      auto state = whole.run(clock, until, nullptr);
      if (state == flow_group::state::failed) BOOST_FAIL(whole.failure()->why.text());
      if (state == flow_group::state::over) return;
      if (random() % 8 == 0) {
        // At once, where that can be, or when all that was under way is done.
        whole.pause(true, true);
        const bool is_drained = random() % 2 == 0;
        for (int i = 0; i < 100 && (is_drained || !whole.under_way().empty()); ++i)
          if (whole.run(clock, is_drained ? never_ns : now + 2000, nullptr) !=
              flow_group::state::more)
            break;
        if (whole.is_over()) return;
        if (whole.under_way().empty()) {
          auto c = whole.keep();
          BOOST_TEST_REQUIRE(bool(c), (c ? "" : c.error().text()));
          kept = checkpoint_bytes(*c);
          ++kept_times;
        }
        whole.pause(false);
      }
      is_lost = random() % 20 == 0;
    }
    ++lost_times;
  }
  BOOST_FAIL("it never comes to its end");
}

void make_input(const std::string& folder) {
  for (const std::string name : {"a", "b", "c"}) {
    std::string text;
    for (int i = 0; i < 90; ++i)
      text += name + std::to_string(i % 4) + " line " + std::to_string(i) + "\n";
    put(folder + "/" + name + ".txt", text);
  }
  put(folder + "/empty.txt", "");
}

const std::vector<std::pair<const char*, describing>> all_topologies{
    {"lines_of_files", lines_of_files},
    {"joins", joins},
    {"loops_and_letters", loops_and_letters},
    {"samples_and_tensors", samples_and_tensors}};

}  // namespace

BOOST_AUTO_TEST_SUITE(topology_checkpoint)

BOOST_AUTO_TEST_CASE(TCK_2_what_is_lost_at_any_time_goes_on_with_each_item_once) {
  temporary_folder in;
  make_input(in.path());
  std::uint64_t kept = 0, lost = 0;
  for (const auto& [name, describe] : all_topologies) {
    temporary_folder whole;
    {
      flow_graph g;
      describe(g, in.path(), whole.path());
      const auto done = drain(g);
      BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
    }
    const auto expected = contents(whole.path());
    const auto* more = std::getenv("TROUPE_SEEDS");
    const std::uint64_t seeds = more != nullptr ? std::strtoull(more, nullptr, 10) : 12;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      temporary_folder out;
      run_with_losses(describe, in.path(), out.path(), seed, kept, lost);
      BOOST_TEST((contents(out.path()) == expected), name << ", seed " << seed);
    }
  }
  BOOST_TEST(kept > 40U);
  BOOST_TEST(lost > 40U);
}

// What run_to_end() says of it; empty: it was done.
std::string run_on_threads(const describing& describe, const std::string& in,
                           const std::string& out, const topology_checkpoint_options& o,
                           const std::function<void(topology&)>& look = {}) {
  topology_options options;
  options.threads = 2;
  options.is_quiet = true;
  options.checkpoint = o;
  topology t(options);
  describe(t, in, out);
  const auto done = t.run_to_end([&](const topology&) {
    if (look) look(t);
  });
  if (!done) return done.error().text();
  return t.was_suspended() ? "suspended" : "";
}
// Takes 3 ms an item.
void slow_lines(flow_graph& g, const std::string& in, const std::string& out) {
  const auto lines = read_lines(g, in + "/*.txt");
  const auto slow = map(lines,
                        [](const std::string& s) {
                          std::this_thread::sleep_for(std::chrono::milliseconds(3));
                          return s + "!";
                        },
                        {.replicas = 2, .blocks = true});
  write_csv(map(slow, numbered{}), out + "/numbered.csv");
  write_json_lines(unbatch(batch(slow, {.count = 7})), out + "/lines.jsonl");
}

BOOST_AUTO_TEST_CASE(on_threads_what_is_killed_or_suspended_goes_on) {
  temporary_folder in, whole;
  make_input(in.path());
  BOOST_TEST_REQUIRE(run_on_threads(slow_lines, in.path(), whole.path(), {}) == "");
  const auto expected = contents(whole.path());
  for (const bool is_killed : {true, false}) {
    temporary_folder out, kept;
    topology_checkpoint_options o{kept.path(), 1'000'000, true};
    int lives = 0, ended = 0;
    std::string said = "begin";
    while (said != "" && ++lives < 100) {
      // Each life ends with the first look, some 100 ms after it has begun.
      said = run_on_threads(
          slow_lines, in.path(), out.path(), o,
          lives > 3 ? std::function<void(topology&)>()
                    : [&](topology& t) { is_killed ? t.kill() : t.suspend(); });
      if (said == "suspended" || said.find("stopped at once") != std::string::npos)
        ++ended;
      else
        BOOST_TEST_REQUIRE(said == "");
    }
    BOOST_TEST(said == "");
    BOOST_TEST((contents(out.path()) == expected), (is_killed ? "killed" : "suspended"));
    BOOST_TEST(!fs::exists(kept.file("topology.checkpoint")));
    BOOST_TEST_MESSAGE(ended << " lives ended before all was done");
  }
}

BOOST_AUTO_TEST_CASE(a_checkpoint_that_is_there_is_resumed_or_left_alone) {
  temporary_folder in, out, kept;
  make_input(in.path());
  topology_checkpoint_options o{kept.path(), 1'000'000, true};
  const auto said =
      run_on_threads(slow_lines, in.path(), out.path(), o, [](topology& t) { t.suspend(); });
  if (said == "") return;  // it was done before
  BOOST_TEST_REQUIRE(said == "suspended");
  BOOST_TEST_REQUIRE(fs::exists(kept.file("topology.checkpoint")));
  o.resume = false;
  const auto refused = run_on_threads(slow_lines, in.path(), out.path(), o);
  BOOST_TEST(refused.find("--resume goes on with it") != std::string::npos, refused);
  o.resume = true;
  // Another topology of that name.
  const auto other = run_on_threads(lines_of_files, in.path(), out.path(), o);
  BOOST_TEST(other.find("is of another topology") != std::string::npos, other);
  // A file that somebody has replaced meanwhile.
  const auto tmp = out.file("numbered.csv.tmp");
  if (fs::exists(tmp)) {
    fs::rename(tmp, out.file("kept"));
    put(tmp, "something else");
    const auto gone = run_on_threads(slow_lines, in.path(), out.path(), o);
    BOOST_TEST(gone.find("is not the file that the checkpoint goes on with") != std::string::npos,
               gone);
    fs::remove(tmp);
    fs::rename(out.file("kept"), tmp);
  }
  // One byte that is wrong.
  auto bytes = text_of(kept.file("topology.checkpoint"));
  auto wrong = bytes;
  wrong[wrong.size() / 2] = char(wrong[wrong.size() / 2] ^ 4);
  put(kept.file("topology.checkpoint"), wrong);
  const auto damaged = run_on_threads(slow_lines, in.path(), out.path(), o);
  BOOST_TEST(damaged.find("the checkpoint is damaged") != std::string::npos, damaged);
  put(kept.file("topology.checkpoint"), bytes);
  BOOST_TEST(run_on_threads(slow_lines, in.path(), out.path(), o) == "");
}

// Same inode, same name: but somebody has written another file since.
BOOST_AUTO_TEST_CASE(a_file_that_was_written_anew_meanwhile_is_left_alone) {
  temporary_folder in, out, kept;
  make_input(in.path());
  topology_checkpoint_options o{kept.path(), 1'000'000, true};
  const auto said =
      run_on_threads(slow_lines, in.path(), out.path(), o, [](topology& t) { t.suspend(); });
  if (said == "" || !fs::exists(out.file("numbered.csv.tmp"))) return;  // it was done before
  BOOST_TEST_REQUIRE(said == "suspended");
  auto other = text_of(in.file("a.txt"));
  for (auto& c : other) c = c == 'a' ? 'x' : c;
  put(in.file("a.txt"), other);
  BOOST_TEST_REQUIRE(run_on_threads(slow_lines, in.path(), out.path(), {}) == "");
  const auto done = contents(out.path());
  const auto refused = run_on_threads(slow_lines, in.path(), out.path(), o);
  BOOST_TEST(refused.find("cannot go on from the checkpoint") != std::string::npos, refused);
  BOOST_TEST((contents(out.path()) == done));
}

BOOST_AUTO_TEST_CASE(a_file_that_is_gone_is_skipped_and_the_others_follow) {
  temporary_folder in;
  make_input(in.path());
  const auto describe = [&](flow_graph& g) {
    for_each(read_lines(g, in.path() + "/*.txt", {.on_error = skip()}), [](const std::string&) {},
             {.name = "end"});
  };
  std::int64_t now = 0;
  const std::function<std::int64_t()> clock = [&] { return now += 1000; };
  std::vector<std::byte> kept;
  {
    flow_graph g;
    describe(g);
    BOOST_TEST_REQUIRE(bool(g.check()));
    flow_group whole(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &g));
    whole.run(clock, 20'000, nullptr);
    whole.pause(true, true);
    whole.run(clock, never_ns, nullptr);
    kept = checkpoint_bytes(*whole.keep());
  }
  fs::remove(in.file("a.txt"));
  flow_graph g;
  describe(g);
  BOOST_TEST_REQUIRE(bool(g.check()));
  const auto c = read_checkpoint(kept, "it");
  flow_group whole(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &g));
  BOOST_TEST_REQUIRE(bool(whole.go_on_from(*c)));
  while (whole.run(clock, never_ns, nullptr) == flow_group::state::more) {
  }
  BOOST_TEST(whole.is_over());
  const auto totals = totals_of(whole);
  BOOST_TEST(totals.of("end").items_in == 180U);  // of the two others
}

BOOST_AUTO_TEST_CASE(files_that_were_read_may_be_gone) {
  temporary_folder in;
  for (const bool was_inside : {false, true}) {
    flow_graph g;
    for_each(read_lines(g, in.path() + "/*.txt"), [](const std::string&) {});
    BOOST_TEST_REQUIRE(bool(g.check()));
    flow_group whole(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &g));
    auto c = std::move(*whole.keep());
    // As after three lines of a.txt.
    c.stages[0].state = saved_by([&](byte_writer& w) {
      w.text(in.file("a.txt"));
      w.number(was_inside);
      w.number(std::uint64_t{3});
    });
    BOOST_TEST_REQUIRE(bool(whole.go_on_from(c)));
    std::int64_t now = 0;
    const std::function<std::int64_t()> clock = [&] { return now += 1000; };
    while (whole.run(clock, never_ns, nullptr) == flow_group::state::more) {
    }
    BOOST_TEST(whole.is_over() == !was_inside);
    BOOST_TEST(whole.failure().has_value() == was_inside);
  }
}

BOOST_AUTO_TEST_CASE(two_programs_do_not_keep_one_topology) {
  temporary_folder kept;
  const auto d = make_host_disk();
  topology_checkpoint_options o{kept.path(), 1, true};
  const auto first = checkpoint_place::open(*d, o, "a/b c");
  BOOST_TEST_REQUIRE(bool(first));
  BOOST_TEST(first->path() == kept.file("a%2Fb%20c.checkpoint"));
  const auto second = checkpoint_place::open(*d, o, "a/b c");
  BOOST_TEST_REQUIRE(!second);
  BOOST_CHECK(second.error().code() == error_code::denied);
  BOOST_TEST(bool(checkpoint_place::open(*d, o, "other")));
}

BOOST_AUTO_TEST_CASE(what_cannot_be_kept_is_told_with_its_line) {
  const auto refused = [](const std::function<void(flow_graph&)>& describe) {
    flow_graph g;
    describe(g);
    BOOST_TEST_REQUIRE(bool(g.check()));
    const auto ok = check_checkpoint(g);
    return ok ? std::string() : ok.error().text();
  };
  const auto has = [](const std::string& text, const char* part) {
    BOOST_TEST(text.find(part) != std::string::npos, text);
    BOOST_TEST(text.find("topology_checkpoint_test.cpp:") != std::string::npos, text);
  };
  struct opaque {
    int x = 0;
  };
  struct forgetful {
    int sum = 0;
    int operator()(int x) { return sum += x; }
  };
  has(refused([](flow_graph& g) {
        for_each(source(g, [n = 0]() mutable { return std::optional(n++); }), [](int) {});
      }),
      "it cannot be told where to go on");
  has(refused([](flow_graph& g) { for_each(map(from(g, {1}), forgetful{}), [](int) {}); }),
      "its function may keep something");
  has(refused([](flow_graph& g) { collect(from(g, {1})); }), "it gathers items in the program");
  has(refused([](flow_graph& g) {
        for_each(batch(map(from(g, {1}), [](int x) { return opaque{x}; }), {.count = 2}),
                 [](const std::vector<opaque>&) {});
      }),
      "which cannot be written");
  has(refused([](flow_graph& g) {
        resource<int> db(1, [](std::uint32_t) { return 1; }, "db");
        for_each(map(from(g, {1}), with(db, [n = 0](int x, int&) mutable { return x + n++; })),
                 [](int) {});
      }),
      "its function may keep something");
  has(refused([](flow_graph& g) {
        for_each(filter(from(g, {1}), [n = 0](int) mutable { return ++n > 1; }), [](int) {});
      }),
      "its predicate may keep something");
  struct remembers {
    std::unordered_map<int, int> state;
    int operator()(int x) { return ++state[x]; }
  };
  has(refused([](flow_graph& g) { for_each(map(from(g, {1}), remembers{}), [](int) {}); }),
      "its member `state` is of a type that cannot be written");
  struct alone {
    int x = 0;
    alone() = default;
    alone(int n) : x(n) {}
    alone(alone&&) = default;
    alone& operator=(alone&&) = default;
  };
  has(refused([](flow_graph& g) {
        for_each(zip(map(from(g, {1}), [](int x) { return alone{x}; }), from(g, {1})),
                 [](const std::tuple<alone, int>&) {});
      }),
      "which cannot be written");
  BOOST_TEST(refused([](flow_graph& g) {
               resource<int> db(1, [](std::uint32_t) { return 1; }, "db");
               for_each(map(from(g, {1}), with(db, [](int x, int&) { return x; })), [](int) {});
             }) == "");
  BOOST_TEST(refused([](flow_graph& g) {
               for_each(map(from(g, {1}), [](int x) { return opaque{x}; }), [](const opaque&) {});
             }) == "");
}

// Where sources have to make more before a stage can go on, they do, and it is tried again.
BOOST_AUTO_TEST_CASE(TD_4_sources_do_not_stand_still_for_ever) {
  temporary_folder out, kept;
  topology_options options;
  options.threads = 2;
  options.is_quiet = true;
  options.budget_bytes = 1;  // each edge holds one item
  options.checkpoint = {kept.path(), 1'000'000, true};
  topology t(options);
  // The second flow comes slowly; what the first one makes of an item fills the edge before zip().
  const auto slow = map(source(t, counts_up{12}), [](int x) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return x;
  });
  const auto fast = map(source(t, counts_up{6}), twice);
  write_csv(map(zip(fast, slow), [](const std::tuple<int, int>& p) { return std::get<0>(p); }),
            out.file("all.csv"));
  const auto done = t.run_to_end();
  BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
  BOOST_TEST(text_of(out.file("all.csv")).size() > 20U);
}

// A stage that is always in a call of 80 ms, with more that waits before it.
BOOST_AUTO_TEST_CASE(a_checkpoint_waits_for_the_calls_under_way) {
  temporary_folder out, kept;
  topology_options options;
  options.threads = 2;
  options.is_quiet = true;
  options.checkpoint = {kept.path(), 1'000'000, true};
  topology t(options);
  write_csv(map(source(t, counts_up{endless}),
                [](int x) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(80));
                  return x;
                },
                {.blocks = true}),
            out.file("all.csv"));
  const auto done = t.run_to_end([&](const topology&) {
    if (fs::exists(kept.file("topology.checkpoint"))) t.suspend();
  });
  BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
  BOOST_TEST(t.was_suspended());
  std::istringstream lines(text_of(out.file("all.csv.tmp")));
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) BOOST_TEST(line == std::to_string(n));
  BOOST_TEST(n > 0);
}

// A generator is nearly always in the middle of an item, and items that cannot be written fill what
// is before a slow stage: both begin nothing more while a checkpoint is to be made.
BOOST_AUTO_TEST_CASE(what_holds_a_checkpoint_up_begins_nothing_more) {
  struct opaque {
    int x = 0;
  };
  for (const bool generates : {true, false}) {
    temporary_folder out, kept;
    topology_options options;
    options.threads = 2;
    options.is_quiet = true;
    options.checkpoint = {kept.path(), 1'000'000, true};
    topology t(options);
    const auto numbers = source(t, counts_up{endless});
    const auto slow = [](int x) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      return x;
    };
    if (generates) {
      const auto many = map(numbers, [](int x) -> generator<int> {
        for (int i = 0; i < 200; ++i) co_yield x;
      });
      write_csv(map(many, slow, {.blocks = true}), out.file("all.csv"));
    } else {
      const auto hidden = map(numbers, [](int x) { return opaque{x}; });
      write_csv(map(hidden, [=](const opaque& o) { return slow(o.x); }, {.blocks = true}),
                out.file("all.csv"));
    }
    // It is over when it was kept.
    const auto done = t.run_to_end([&](const topology&) {
      if (fs::exists(kept.file("topology.checkpoint"))) t.suspend();
    });
    BOOST_TEST_REQUIRE(bool(done), (done ? "" : done.error().text()));
    BOOST_TEST(t.was_suspended());
  }
}

// Whoever is held back for a checkpoint may be who others need: the hold is lifted then.
BOOST_AUTO_TEST_CASE(a_hold_that_stops_everything_is_lifted) {
  struct opaque {
    int x = 0;
  };
  const auto pause = [](const opaque&) {
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  };
  const auto many = [](int x) -> generator<int> {
    for (int i = 0; i < 50; ++i) co_yield x;
  };
  const std::vector<std::function<void(flow_graph&)>> shapes{
      // Ends that are replicas, in order, of items that cannot be written.
      [&](flow_graph& g) {
        for_each(map(source(g, counts_up{endless}), [](int x) { return opaque{x}; }), pause,
                 {.replicas = 2, .blocks = true});
      },
      // The newest item, for who is held.
      [&](flow_graph& g) {
        const auto newest = latest(map(source(g, counts_up{endless}), [](int x) {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
          return x;
        }));
        for_each(map(map(newest, many, {.blocks = true}), [](int x) { return opaque{x}; }), pause,
                 {.blocks = true});
      }};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    temporary_folder kept;
    topology_options options;
    options.threads = 2;
    options.is_quiet = true;
    options.checkpoint = {kept.path(), 1'000'000, true};
    topology t(options);
    shapes[i](t);
    const auto done = t.run_to_end([&](const topology&) {
      if (fs::exists(kept.file("topology.checkpoint"))) t.suspend();
    });
    BOOST_TEST(bool(done), i << ": " << (done ? "" : done.error().text()));
    BOOST_TEST(t.was_suspended(), i);
  }
}

// A copy of what was written is as good.
BOOST_AUTO_TEST_CASE(a_file_goes_on_by_what_stands_in_it) {
  temporary_folder folder;
  file_being_made::mark m;
  std::string text(3 << 20, 'x');
  {
    file_being_made file(folder.file("a"));
    BOOST_TEST(bool(file.write(text)));
    BOOST_TEST(bool(file.keep(m)));
    BOOST_TEST(bool(file.write("what came later")));
    BOOST_TEST(bool(file.finish()));
  }
  fs::copy_file(folder.file("a"), folder.file("b"));
  for (const auto* name : {"a", "b"}) {
    file_being_made again(folder.file(name));
    BOOST_TEST(bool(again.reopen(m)));
    BOOST_TEST(!fs::exists(folder.file(name)));  // it is not whole
    file_being_made::mark second = m;
    BOOST_TEST(bool(again.write("y")));
    BOOST_TEST(bool(again.keep(second)));
    BOOST_TEST(bool(again.finish()));
    BOOST_TEST((text_of(folder.file(name)) == text + "y"));
    file_being_made third(folder.file(name));
    BOOST_TEST(bool(third.reopen(second)));
    BOOST_TEST(bool(third.finish()));
  }
  // One byte in the middle.
  auto wrong = text;
  wrong[1 << 20] = 'z';
  put(folder.file("b.tmp"), wrong);
  file_being_made other(folder.file("b"));
  const auto refused = other.reopen(m);
  BOOST_TEST_REQUIRE(!refused);
  BOOST_TEST(
      refused.error().text().find("its first 3145728 bytes are other ones") != std::string::npos,
      refused.error().text());
  BOOST_TEST((text_of(folder.file("b.tmp")) == wrong));
}

BOOST_AUTO_TEST_CASE(TCK_1_a_checkpoint_is_read_as_it_was_written_or_not_at_all) {
  troupe::topology_checkpoint c;
  c.topology = "words";
  c.number = 7;
  c.items = 12;
  c.stages = {{"a", "map", "u64", false, 3, 4, tensor::of({1.0f, 2.0f}, {2})},
              {"b", "merge", "", true, 0, 0, {}}};
  c.edges = {{0, 0, 1, 0, true, false, true, {}}, {}};
  const auto bytes = checkpoint_bytes(c);
  const auto again = read_checkpoint(bytes, "it");
  BOOST_TEST_REQUIRE(bool(again), (again ? "" : again.error().text()));
  BOOST_TEST((checkpoint_bytes(*again) == bytes));
  BOOST_TEST(again->stages[0].state.size_bytes() == 8U);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto wrong = bytes;
    wrong[i] ^= std::byte{1};
    BOOST_TEST(!read_checkpoint(wrong, "it"));
    BOOST_TEST(!read_checkpoint(std::span(bytes).first(i), "it"));
  }
}

BOOST_AUTO_TEST_SUITE_END()
