// Work that is no job, over simulated processes: its words, its streams of bytes, and who is told
// of whom.

#include "tools/troupe-sim/sim_cluster.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/messages/stream_messages.hpp"

#include <boost/test/unit_test.hpp>

#include <caf/event_based_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

using namespace troupe;

namespace {

constexpr std::int64_t ms = sim_cluster::ms;
constexpr std::int64_t s = 1000 * ms;
constexpr job_id work{0x77};

// What somebody who has joined hears.
struct heard {
  std::vector<work_word_came> words;
  std::vector<word_refused> refused;
  std::vector<node_lost> lost;
  std::vector<stream_bound> bound;
  std::vector<stream_value> values;
};

caf::behavior listener(caf::event_based_actor*, heard* h) {
  return {
      [h](work_word_came& m) { h->words.push_back(std::move(m)); },
      [h](word_refused& m) { h->refused.push_back(std::move(m)); },
      [h](node_lost& m) { h->lost.push_back(std::move(m)); },
      [h](stream_bound& m) { h->bound.push_back(std::move(m)); },
      [h](stream_value& m) { h->values.push_back(std::move(m)); },
  };
}

tensor value_of(std::size_t bytes, std::size_t first) {
  auto t = tensor::make({dtype::u8, {static_cast<std::int64_t>(bytes)}});
  std::size_t i = first;
  for (auto& b : t.bytes()) b = static_cast<std::byte>(i++ * 7 % 251);
  return t;
}

bool is_value(const tensor& t, std::size_t bytes, std::size_t first) {
  if (!t || t.size_bytes() != bytes || t.spec().type != dtype::u8) return false;
  return std::ranges::all_of(std::as_const(t).bytes(), [i = first](std::byte b) mutable {
    return b == static_cast<std::byte>(i++ * 7 % 251);
  });
}

std::vector<std::byte> word_of(std::uint32_t n) {
  std::vector<std::byte> w(1 + n % 300, static_cast<std::byte>(n));
  return w;
}

// Two nodes and a client, with somebody at each.
struct processes {
  explicit processes(std::uint64_t seed, bool hosts = false) : seed_(seed) {
    sim_cluster_options o{.seed = seed, .nodes = 2};
    if (hosts)
      o.host_work = [this](std::uint32_t process, job_id job, node_id from) {
        asked.emplace_back(process, job, from);
        return process == 1 ? who_at(1) : caf::actor();
      };
    cluster.emplace(tables, o);
    BOOST_TEST_REQUIRE(cluster->form());
  }
  ~processes() {
    who.clear();
    for (auto& [process, h] : at) h.bound.clear();
    BOOST_TEST(cluster->finish(), fmt::format("an actor is left over with seed {}", seed_));
    BOOST_TEST(cluster->failures().empty());
  }
  processes(const processes&) = delete;
  processes& operator=(const processes&) = delete;

  caf::actor who_at(std::uint32_t process) {
    auto& a = who[process];
    if (!a) a = spawn_on(cluster->system(), cluster->unit(process), &listener, &at[process]);
    return a;
  }
  node_id id(std::uint32_t process) const { return cluster->info(process).id; }
  template <class Message>
  void say(std::uint32_t process, Message m) {
    tell(nullptr, cluster->node(process), std::move(m));
  }
  void join(std::uint32_t process) { say(process, join_work{work, who_at(process)}); }
  void send(std::uint32_t from, std::uint32_t to, std::vector<std::byte> bytes) {
    say(from, send_word{work, id(to), std::move(bytes)});
  }
  template <class Done>
  bool run_until(Done done, std::int64_t limit_ns = 20 * s) {
    return cluster->run_until(done, limit_ns);
  }
  // Both are told that they can send. Their links.
  std::pair<caf::actor, caf::actor> bind(std::uint32_t a, std::uint32_t b) {
    return {bind_one(a, b), bind_one(b, a)};
  }
  caf::actor bind_one(std::uint32_t process, std::uint32_t peer) {
    const auto n = at[process].bound.size();
    say(process, bind_stream{work, id(peer), who_at(process)});
    BOOST_TEST_REQUIRE(run_until([&] { return at[process].bound.size() > n; }));
    const auto& told = at[process].bound.back();
    BOOST_TEST_REQUIRE(told.error == "");
    BOOST_TEST((told.peer == id(peer)));
    return told.link;
  }
  void cut_now_and_then(std::uint32_t a, std::uint32_t b, std::uint32_t one_in) {
    if (cluster->random()() % one_in == 0) cluster->cut(a, b);
  }

  sim_tables tables;
  std::optional<sim_cluster> cluster;
  std::map<std::uint32_t, heard> at;
  std::map<std::uint32_t, caf::actor> who;
  std::vector<std::tuple<std::uint32_t, job_id, node_id>> asked;

 private:
  std::uint64_t seed_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(work_streams)

BOOST_AUTO_TEST_CASE(words_arrive_in_order_each_once_also_when_connections_are_cut) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    processes p(seed);
    p.join(0), p.join(1);
    constexpr std::uint32_t words = 200;
    std::uint32_t sent = 0;
    const bool are_there = p.run_until([&] {
      if (sent < words && p.cluster->random()() % 4 == 0) {
        p.send(0, 1, word_of(sent));
        p.send(1, 0, word_of(sent + 1));
        p.send(0, 0, word_of(sent + 2));
        ++sent;
      }
      p.cut_now_and_then(0, 1, 400);
      return p.at[0].words.size() == 2 * words && p.at[1].words.size() == words;
    });
    BOOST_TEST_REQUIRE(are_there, fmt::format("words are missing with seed {}", seed));
    std::uint32_t to_itself = 0, over = 0;
    for (const auto& w : p.at[0].words)
      BOOST_TEST((w.job == work &&
                  w.bytes == (w.from == p.id(0) ? word_of(to_itself++ + 2) : word_of(over++ + 1))));
    for (std::uint32_t i = 0; i < words; ++i)
      BOOST_TEST((p.at[1].words[i].from == p.id(0) && p.at[1].words[i].bytes == word_of(i)));
    BOOST_TEST(to_itself == words);
  }
}

BOOST_AUTO_TEST_CASE(a_word_that_is_too_long_or_leads_nowhere_is_refused_and_harms_nothing) {
  processes p(3);
  p.join(0), p.join(1);
  p.send(0, 1, std::vector<std::byte>(work_word_bytes_max + 1));
  p.say(0, send_word{work, node_id{12345}, word_of(1)});
  p.send(0, 1, std::vector<std::byte>(work_word_bytes_max, std::byte{9}));
  p.send(0, 1, word_of(2));
  BOOST_TEST_REQUIRE(p.run_until([&] { return p.at[1].words.size() == 2; }));
  BOOST_TEST(p.at[1].words[0].bytes.size() == work_word_bytes_max);
  BOOST_TEST((p.at[1].words[1].bytes == word_of(2)));
  BOOST_TEST_REQUIRE(p.at[0].refused.size() == 2u);
  BOOST_TEST((p.at[0].refused[0].to == p.id(1)));
  BOOST_TEST(p.at[0].refused[0].reason ==
             "a word of 15728641 bytes is beyond the limit of 15728640");
  BOOST_TEST((p.at[0].refused[1].to == node_id{12345}));
  BOOST_TEST(p.at[0].refused[1].reason == "no link leads to 3039");
}

BOOST_AUTO_TEST_CASE(LK_9_values_arrive_in_order_each_once_also_when_connections_are_cut) {
  constexpr std::size_t mb = 1'000'000;
  constexpr std::size_t chunk = payload_max;
  const std::vector<std::size_t> sizes{1,         2,       100'000, chunk - 1, chunk, chunk + 1,
                                       3 * chunk, 20 * mb, 1,       5 * mb,    64};
  std::uint64_t needed = 0, travelled = 0;  // chunks, where connections are cut
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    processes p(seed);
    p.join(0), p.join(1);
    const auto links = p.bind(0, 1);
    const bool is_cut = seed % 4 != 0;
    p.cluster->network().set_filter([&](const outgoing_frame& f) {
      travelled += is_cut && f.kind == frame_kind::chunk ? 1 : 0;
      return true;
    });
    for (const auto size : sizes)
      for (const auto bytes : {size, size / 2 + 1})
        needed += is_cut ? (bytes + chunk - 1) / chunk : 0;
    std::size_t sent = 0;
    const bool are_there = p.run_until([&] {
      if (sent < sizes.size() && p.cluster->random()() % 8 == 0) {
        tell(nullptr, links.first, send_stream{work, value_of(sizes[sent], sent)});
        tell(nullptr, links.second, send_stream{work, value_of(sizes[sent] / 2 + 1, sent + 1)});
        ++sent;
      }
      if (is_cut) p.cut_now_and_then(0, 1, 40);
      return p.at[0].values.size() == sizes.size() && p.at[1].values.size() == sizes.size();
    });
    BOOST_TEST_REQUIRE(are_there, fmt::format("values are missing with seed {}", seed));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      BOOST_TEST((p.at[1].values[i].from == p.id(0) && p.at[0].values[i].from == p.id(1)));
      BOOST_TEST(is_value(p.at[1].values[i].value, sizes[i], i));
      BOOST_TEST(is_value(p.at[0].values[i].value, sizes[i] / 2 + 1, i + 1));
    }
    p.cluster->run_for(1 * s);
    BOOST_TEST(p.at[1].values.size() == sizes.size());
    BOOST_TEST(p.cluster->kept_bytes() == 0u);
  }
  BOOST_TEST(travelled > needed);  // the cuts came when it mattered
}

BOOST_AUTO_TEST_CASE(LK_3_a_chunk_of_a_stream_that_is_not_bound_is_dropped_and_counted) {
  processes p(5);
  p.join(0), p.join(1);
  const auto there = p.bind_one(0, 1);
  tell(nullptr, there, send_stream{work, value_of(3 * payload_max, 1)});
  BOOST_TEST_REQUIRE(p.run_until([&] {
    return p.cluster->drops(drop_reason::unknown_job) == 3 && p.cluster->kept_bytes() == 0;
  }));
  // Who binds too late gets nothing any more, and the other direction is as it was.
  const auto back = p.bind_one(1, 0);
  tell(nullptr, there, send_stream{work, value_of(10, 2)});
  tell(nullptr, back, send_stream{work, value_of(20, 3)});
  BOOST_TEST_REQUIRE(p.run_until([&] { return p.at[0].values.size() == 1; }));
  BOOST_TEST(is_value(p.at[0].values[0].value, 20, 3));
  p.cluster->run_for(1 * s);
  BOOST_TEST(p.at[1].values.empty());
  // A link of which nobody has bound the stream sends none.
  tell(nullptr, there, send_stream{job_id{78}, value_of(10, 2)});
  BOOST_TEST_REQUIRE(p.run_until([&] { return p.cluster->drops(drop_reason::unknown_job) == 4; }));
}

BOOST_AUTO_TEST_CASE(a_stream_is_refused_where_there_is_no_link_and_to_who_has_not_joined) {
  processes p(6);
  p.join(0);
  p.say(0, bind_stream{work, node_id{12345}, p.who_at(0)});
  p.say(0, bind_stream{work, p.id(0), p.who_at(0)});
  p.say(1, bind_stream{work, p.id(0), p.who_at(1)});
  BOOST_TEST_REQUIRE(
      p.run_until([&] { return p.at[0].bound.size() == 2 && p.at[1].bound.size() == 1; }));
  BOOST_TEST((p.at[0].bound[0].peer == node_id{12345} && !p.at[0].bound[0].link));
  BOOST_TEST(p.at[0].bound[0].error == "no link leads to 3039");
  BOOST_TEST(p.at[0].bound[1].error == "a stream leads to another node");
  BOOST_TEST(p.at[1].bound[0].error == "this node has not joined that work");
}

BOOST_AUTO_TEST_CASE(LK_9_who_leaves_in_the_middle_of_a_value_gets_no_more_and_harms_nothing) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    processes p(seed);
    p.join(0), p.join(1);
    const auto links = p.bind(0, 1);
    std::uint32_t chunks = 0;
    p.cluster->network().set_filter([&](const outgoing_frame& f) {
      chunks += f.kind == frame_kind::chunk ? 1 : 0;
      return true;
    });
    for (std::size_t i = 0; i < 3; ++i)
      tell(nullptr, links.first, send_stream{work, value_of(8 * payload_max, i)});
    BOOST_TEST_REQUIRE(p.run_until([&] { return chunks >= 3 + seed; }));
    p.say(1, leave_work{work});
    p.cluster->run_for(200 * ms);
    const auto had = p.at[1].values.size();
    BOOST_TEST_REQUIRE(p.run_until([&] { return p.cluster->kept_bytes() == 0; }));
    BOOST_TEST(p.at[1].values.size() == had);
    // The link is as it was.
    p.join(1);
    p.send(0, 1, word_of(2));
    BOOST_TEST_REQUIRE(p.run_until([&] { return p.at[1].words.size() == 1; }));
    BOOST_TEST((p.at[1].words[0].bytes == word_of(2)));
    BOOST_TEST(p.at[0].lost.empty());
  }
}

BOOST_AUTO_TEST_CASE(LK_9_what_was_sent_arrives_also_when_the_sender_has_left) {
  processes p(4);
  p.join(0), p.join(1);
  const auto links = p.bind(0, 1);
  tell(nullptr, links.first, send_stream{work, value_of(8 * payload_max, 1)});
  p.say(0, leave_work{work});
  BOOST_TEST_REQUIRE(p.run_until([&] { return p.at[1].values.size() == 1; }));
  BOOST_TEST(is_value(p.at[1].values[0].value, 8 * payload_max, 1));
}

BOOST_AUTO_TEST_CASE(LK_9_what_is_no_value_ends_the_stream_and_who_has_bound_it_is_told) {
  processes p(4);
  p.join(0), p.join(1);
  const auto links = p.bind(0, 1);
  tell(nullptr, links.first, send_stream{work, tensor::make({dtype::f32, {4}})});
  BOOST_TEST_REQUIRE(p.run_until([&] { return p.at[0].bound.size() == 2; }));
  BOOST_TEST(!p.at[0].bound[1].link);
  BOOST_TEST(p.at[0].bound[1].error ==
             "what is sent on a stream is u8[n], of 1 byte to 2 GiB, and not f32[4]");
  tell(nullptr, links.first, send_stream{work, value_of(4, 1)});
  BOOST_TEST_REQUIRE(p.run_until([&] { return p.cluster->drops(drop_reason::unknown_job) == 1; }));
  BOOST_TEST(p.at[1].values.empty());
}

BOOST_AUTO_TEST_CASE(who_has_joined_is_told_of_a_node_that_dies_or_leaves) {
  for (const bool dies : {true, false}) {
    processes p(7);
    p.join(0), p.join(2);
    p.say(2, leave_work{work});
    const auto lost = p.cluster->info(1);
    p.cluster->run_for(100 * ms);
    dies ? p.cluster->kill(1) : p.cluster->leave(1);
    BOOST_TEST_REQUIRE(p.run_until([&] { return p.at[0].lost.size() == 1; }));
    BOOST_TEST((p.at[0].lost[0].node == lost.id));
    BOOST_TEST(p.at[0].lost[0].name == lost.name);
    BOOST_TEST(!p.at[0].lost[0].reason.empty());
    BOOST_TEST(p.at[2].lost.empty());
  }
}

BOOST_AUTO_TEST_CASE(NO_11_work_on_a_node_that_ends_is_told_that_this_node_is_lost_and_is_left) {
  processes p(8);
  p.join(0), p.join(1);
  const auto self = p.id(1);
  p.cluster->run_for(100 * ms);
  p.cluster->leave(1);
  BOOST_TEST_REQUIRE(p.run_until([&] { return !p.at[1].lost.empty(); }));
  BOOST_TEST((p.at[1].lost[0].node == self));
  BOOST_TEST(p.at[1].lost[0].reason == "was asked to leave");
  p.who.erase(1);
}

BOOST_AUTO_TEST_CASE(NO_11_work_on_a_node_that_is_fenced_is_told_so_once) {
  processes p(9);
  p.join(0), p.join(1);
  const auto self = p.id(1);
  p.cluster->run_for(100 * ms);
  p.cluster->freeze(1);
  BOOST_TEST_REQUIRE(p.run_until([&] { return p.at[0].lost.size() == 1; }));
  BOOST_TEST((p.at[0].lost[0].node == self));
  p.cluster->thaw(1);
  BOOST_TEST_REQUIRE(p.run_until([&] {
    return std::ranges::count(p.at[1].lost, self, &node_lost::node) == 1 && p.id(1) != self;
  }));
  BOOST_TEST_REQUIRE(p.cluster->form());
  const auto told = p.at[1].lost.size();
  // It has left: words for it are dropped, and nothing is told any more.
  p.send(0, 1, word_of(1));
  p.cluster->run_for(2 * s);
  BOOST_TEST(p.at[1].words.empty());
  BOOST_TEST(p.at[1].lost.size() == told);
}

BOOST_AUTO_TEST_CASE(NO_11_a_word_for_unknown_work_goes_to_who_the_hook_says) {
  processes p(10, true);
  p.join(0);
  for (std::uint32_t i = 0; i < 20; ++i) p.send(0, 1, word_of(i));
  p.send(0, 2, word_of(1));  // where the hook has nobody
  BOOST_TEST_REQUIRE(p.run_until([&] { return p.at[1].words.size() == 20; }));
  for (std::uint32_t i = 0; i < 20; ++i)
    BOOST_TEST((p.at[1].words[i].from == p.id(0) && p.at[1].words[i].bytes == word_of(i)));
  BOOST_TEST_REQUIRE(p.run_until([&] { return p.asked.size() == 2; }));
  BOOST_TEST(std::ranges::count(p.asked, std::tuple(1u, work, p.id(0))) == 1);
  BOOST_TEST(std::ranges::count(p.asked, std::tuple(2u, work, p.id(0))) == 1);
  // It has joined: it may answer, and is told who dies.
  p.send(1, 0, word_of(5));
  BOOST_TEST_REQUIRE(p.run_until([&] { return p.at[0].words.size() == 1; }));
  p.cluster->kill(0);
  BOOST_TEST_REQUIRE(p.run_until([&] { return p.at[1].lost.size() == 1; }));
}

BOOST_AUTO_TEST_CASE(NO_4_a_word_for_work_that_nobody_has_joined_is_dropped) {
  processes p(11);
  p.join(0);
  p.send(0, 1, word_of(1));
  p.send(1, 0, word_of(2));  // of who has not joined itself
  p.cluster->run_for(1 * s);
  p.join(1);
  p.cluster->run_for(100 * ms);
  p.send(0, 1, word_of(3));
  BOOST_TEST_REQUIRE(p.run_until([&] { return !p.at[1].words.empty(); }));
  BOOST_TEST((p.at[1].words[0].bytes == word_of(3)));
  BOOST_TEST(p.at[0].words.empty());
}

BOOST_AUTO_TEST_SUITE_END()
