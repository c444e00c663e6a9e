#pragma once
// A timeline's file, read back, and what must hold of every one (tools/troupe-tool/timeline.hpp,
// TI-1 to TI-3).

#include "tools/troupe-tool/timeline.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troupe::test {

struct trace_file {
  struct slice {
    std::int64_t begin_ns = 0, end_ns = 0;
    std::string category, name;
    nlohmann::json args;
  };
  struct arrow_end {
    std::uint64_t process = 0, thread = 0;
    std::int64_t at_ns = 0;
  };
  using lane = std::pair<std::uint64_t, std::uint64_t>;  // process, thread

  std::map<std::uint64_t, std::string> processes;
  std::map<lane, std::string> threads;
  std::map<lane, std::vector<slice>> slices;
  std::map<std::string, std::pair<arrow_end, arrow_end>> arrows;  // by id
  nlohmann::json other_data;
  timeline_summary summary;

  std::size_t count(const std::string& category) const {
    std::size_t n = 0;
    for (const auto& [at, all] : slices)
      for (const auto& s : all) n += s.category == category;
    return n;
  }
  std::size_t arrows_across() const {
    std::size_t n = 0;
    for (const auto& [id, a] : arrows) n += a.first.process != a.second.process;
    return n;
  }
  // The last one that begins no later, if it has the time or takes none.
  const slice* at(const arrow_end& e) const {
    const auto lane = slices.find({e.process, e.thread});
    if (lane == slices.end()) return nullptr;
    auto s = std::ranges::upper_bound(lane->second, e.at_ns, {}, &slice::begin_ns);
    if (s == lane->second.begin()) return nullptr;
    --s;
    return e.at_ns < s->end_ns || s->begin_ns == s->end_ns ? &*s : nullptr;
  }
};

inline std::int64_t ns_of(const nlohmann::json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

// Whatever does not hold fails the test.
inline trace_file read_timeline(const cluster_recording& r, const std::string& job = "") {
  trace_file f;
  std::string text;
  f.summary = write_timeline(r, job, [&](std::string_view piece) { text += piece; });
  const auto j = nlohmann::json::parse(text, nullptr, false);
  BOOST_TEST_REQUIRE(!j.is_discarded(), "TI-1");
  f.other_data = j.at("otherData");
  std::map<std::string, std::vector<std::pair<char, trace_file::arrow_end>>> ends;
  for (const auto& e : j.at("traceEvents")) {
    const auto phase = e.at("ph").get<std::string>().at(0);
    const auto process = e.at("pid").get<std::uint64_t>();
    if (phase == 'M') {
      if (e.at("name") == "process_name") f.processes[process] = e.at("args").at("name");
      if (e.at("name") == "thread_name")
        f.threads[{process, e.at("tid")}] = e.at("args").at("name");
    } else if (phase == 'X') {
      const auto begin = ns_of(e.at("ts"));
      f.slices[{process, e.at("tid")}].push_back(
          {begin, begin + ns_of(e.at("dur")), e.at("cat"), e.at("name"), e.at("args")});
    } else {
      BOOST_TEST((phase == 's' || phase == 'f'));
      ends[e.at("id")].push_back({phase, {process, e.at("tid"), ns_of(e.at("ts"))}});
    }
  }
  for (const auto& [at, lane] : f.slices) {
    BOOST_TEST(f.threads.contains(at));
    std::int64_t last = 0;
    bool is_right = true;
    for (const auto& s : lane) {
      is_right = is_right && s.begin_ns >= last && s.end_ns >= s.begin_ns;
      last = s.end_ns;
    }
    BOOST_TEST(is_right, "TI-2: " << f.threads[at]);
  }
  for (const auto& [id, both] : ends) {
    BOOST_TEST_REQUIRE(both.size() == 2u, "TI-3: arrow " << id);
    BOOST_TEST((both[0].first == 's' && both[1].first == 'f'));
    f.arrows[id] = {both[0].second, both[1].second};
    BOOST_TEST_REQUIRE((f.at(both[0].second) != nullptr && f.at(both[1].second) != nullptr),
                       "TI-3: arrow " << id);
  }
  BOOST_TEST(f.arrows.size() == f.summary.arrows);
  return f;
}

}  // namespace troupe::test
