#include "troupe/runtime/jobs/placement.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <string>
#include <vector>

using namespace troupe;

namespace {

member_info node(std::uint64_t id, std::string job = "", member_kind kind = member_kind::node) {
  member_info m;
  m.id = node_id{id};
  m.start_time_ns = id;
  m.job = std::move(job);
  m.kind = kind;
  return m;
}

member_info with_devices(member_info m, std::uint32_t devices) {
  m.name = "n" + std::to_string(raw(m.id));
  if (devices > 0) m.devices = {{"chip", 0, devices}};
  return m;
}

// Workers and shards that wish for so many devices, by worker and by shard.
device_wishes wishes(std::vector<std::uint32_t> workers, std::vector<std::uint32_t> shards) {
  const auto all = [](const std::vector<std::uint32_t>& counts, const char* who) {
    std::vector<device_wish> out;
    for (const auto n : counts)
      out.push_back(n == 0 ? device_wish{} : device_wish{n, who, {"model.cpp", 12}});
    return out;
  };
  return {all(workers, "dense/matmul"), all(shards, "dense/kernel")};
}

constexpr node_id client{99};
using ids = std::vector<node_id>;

}  // namespace

BOOST_AUTO_TEST_SUITE(placement)

BOOST_AUTO_TEST_CASE(workers_come_from_the_first_node_and_shards_from_the_last) {
  const std::vector<member_info> three{node(1), node(2), node(3)};
  const auto p = place_training(three, client, 2, 2);
  BOOST_REQUIRE(p);
  BOOST_TEST((p->nodes[p->worker_task[0]] == node_id{1}));
  BOOST_TEST((p->nodes[p->worker_task[1]] == node_id{2}));
  BOOST_TEST((p->nodes[p->shard_task[0]] == node_id{3}));
  // Shares the node of worker 1, and its task.
  BOOST_TEST((p->nodes[p->shard_task[1]] == node_id{2}));
  BOOST_TEST(p->shard_task[1] == p->worker_task[1]);
  BOOST_TEST((p->nodes[p->client_task] == client));
}

BOOST_AUTO_TEST_CASE(every_node_is_a_task_of_a_graph_and_the_client_is_the_last_one) {
  auto labelled = with_devices(node(2), 2);
  labelled.labels = {"rack=3"};
  labelled.streams = 4;
  const std::vector<member_info> mixed{node(1, "ps"), labelled, node(3, "worker")};
  const std::vector<std::string> roles{"/job:worker/task:9"};
  const auto where = tasks_of_nodes(mixed, node(99, "", member_kind::client), 3, roles);
  BOOST_TEST(
      where.task_names == (std::vector<std::string>{"/job:ps/task:0", "/job:worker/task:0",
                                                    "/job:worker/task:1", "/job:client/task:0"}),
      boost::test_tools::per_element());
  BOOST_TEST(where.streams == (std::vector<std::uint32_t>{1, 4, 1, 3}),
             boost::test_tools::per_element());
  BOOST_TEST(where.client_task == 3u);
  BOOST_TEST(where.roles.back().first == roles[0]);
  BOOST_TEST(where.roles.back().second == 3u);
  BOOST_TEST((where.nodes_of[3].id == client));
  BOOST_TEST(where.nodes_of[1].devices == 2u);
  BOOST_TEST(where.nodes_of[1].labels == labelled.labels, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(nodes_for_data_take_no_part_of_a_training) {
  const auto able = with_libraries({node(1, "data"), node(2), node(3, "ps"), node(4, "data")}, {});
  BOOST_REQUIRE(able.nodes.size() == 2u);
  BOOST_TEST((able.nodes[0].id == node_id{2}));
  BOOST_TEST((able.nodes[1].id == node_id{3}));
  BOOST_TEST(able.left_out.empty());
  const std::vector<member_info> all{node(1, "data"), node(2), node(3, "data")};
  const auto where = tasks_of_nodes(all, node(99, "", member_kind::client), 1, {});
  BOOST_TEST(
      where.task_names == (std::vector<std::string>{"/job:data/task:0", "/job:worker/task:0",
                                                    "/job:data/task:1", "/job:client/task:0"}),
      boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(shards_stay_on_ps_nodes_where_there_are_any) {
  const std::vector<member_info> mixed{node(1, "ps"), node(2), node(3, "worker"), node(4, "ps")};
  const auto p = place_training(mixed, client, 2, 3);
  BOOST_REQUIRE(p);
  BOOST_TEST((p->nodes[p->worker_task[0]] == node_id{2}));
  BOOST_TEST((p->nodes[p->worker_task[1]] == node_id{3}));
  BOOST_TEST((p->nodes[p->shard_task[0]] == node_id{1}));
  BOOST_TEST((p->nodes[p->shard_task[1]] == node_id{4}));
  BOOST_TEST((p->nodes[p->shard_task[2]] == node_id{1}));
}

BOOST_AUTO_TEST_CASE(more_workers_than_nodes_is_a_usage_error_with_both_numbers) {
  const std::vector<member_info> two{node(1), node(2, "ps")};
  const auto p = place_training(two, client, 2, 1);
  BOOST_REQUIRE(!p);
  BOOST_TEST((p.error().code() == error_code::usage));
  BOOST_TEST(p.error().message().find("2 workers") != std::string::npos);
  BOOST_TEST(p.error().message().find("has 1") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(without_nodes_everything_runs_at_the_client) {
  const auto p = place_training({}, client, 4, 2);
  BOOST_REQUIRE(p);
  BOOST_TEST(p->nodes.size() == 1u);
  BOOST_TEST((p->nodes[0] == client));
}

BOOST_AUTO_TEST_CASE(PM_5_who_wishes_for_a_device_is_on_a_node_that_has_it) {
  const std::vector<member_info> nodes{with_devices(node(1), 0), with_devices(node(2), 1),
                                       with_devices(node(3), 2), with_devices(node(4), 0)};
  auto r = first_roles(nodes, client, 2, 2, false, false, false, wishes({1, 1}, {1, 0}));
  BOOST_REQUIRE_MESSAGE(r, (r ? "" : r.error().text()));
  BOOST_TEST((r->workers == ids{node_id{2}, node_id{3}}));
  // Counted from the last: of those that have one, and of all.
  BOOST_TEST((r->shards == ids{node_id{3}, node_id{3}}));
  // Nobody may take the only node of who wishes for more.
  r = first_roles(nodes, client, 3, 1, false, false, false, wishes({0, 1, 2}, {}));
  BOOST_REQUIRE_MESSAGE(r, (r ? "" : r.error().text()));
  BOOST_TEST((r->workers == ids{node_id{1}, node_id{2}, node_id{3}}));
  r = first_roles(nodes, client, 4, 1, false, false, false, wishes({0, 0, 0, 1}, {}));
  BOOST_REQUIRE_MESSAGE(r, (r ? "" : r.error().text()));
  BOOST_TEST((r->workers == ids{node_id{1}, node_id{3}, node_id{4}, node_id{2}}));
  // They share where they may.
  r = first_roles(nodes, client, 5, 1, true, false, false, wishes({1, 1, 1, 1, 2}, {}));
  BOOST_REQUIRE_MESSAGE(r, (r ? "" : r.error().text()));
  BOOST_TEST((r->workers == ids{node_id{2}, node_id{2}, node_id{3}, node_id{2}, node_id{3}}));
}

BOOST_AUTO_TEST_CASE(PM_5_a_shard_whose_ps_nodes_lack_its_device_is_where_it_is) {
  const std::vector<member_info> nodes{with_devices(node(1, "ps"), 0), with_devices(node(2), 1),
                                       with_devices(node(3, "ps"), 0)};
  const auto r = first_roles(nodes, client, 1, 3, false, false, false, wishes({1}, {0, 1, 0}));
  BOOST_REQUIRE_MESSAGE(r, (r ? "" : r.error().text()));
  BOOST_TEST((r->shards == ids{node_id{1}, node_id{2}, node_id{1}}));
}

BOOST_AUTO_TEST_CASE(
    PM_5_no_or_too_few_nodes_with_a_device_is_a_usage_error_with_the_line_and_what_each_has) {
  const std::vector<member_info> nodes{with_devices(node(1), 0), with_devices(node(2), 1),
                                       with_devices(node(3, "ps"), 3)};
  const auto refused = [&](std::uint32_t workers, bool may_share, const device_wishes& w) {
    const auto r = first_roles(nodes, client, workers, 1, may_share, false, false, w);
    BOOST_REQUIRE(!r);
    BOOST_TEST((r.error().code() == error_code::usage));
    return r.error().text();
  };
  BOOST_TEST(
      refused(1, true, wishes({2}, {})) ==
      "model.cpp:12: 'dense/matmul' is to run on gpu:1, and no node that takes workers has it: n1 has no device; n2 has gpu:0 (chip); n3 (ps) has gpu:0 to gpu:2 (chip). "
      "Start troupe-node where such devices are (its --gpus says which it has), or choose another device");
  BOOST_TEST(
      refused(1, true, wishes({0}, {5}))
          .starts_with(
              "model.cpp:12: 'dense/kernel' is to run on gpu:4, and no node has it: n1 has no device; "));
  const auto few = refused(2, false, wishes({1, 1}, {}));
  BOOST_TEST(
      few.starts_with(
          "model.cpp:12: 'dense/matmul' is to run on gpu:0, and each of 2 workers that wish for devices needs a node of its own that has them: n1 has no device; "),
      few);
  BOOST_TEST(few.ends_with("or use fewer workers"), few);
  BOOST_TEST(bool(first_roles(nodes, client, 2, 1, true, false, false, wishes({1, 1}, {}))));
  // A list of a large cluster is cut, and says so.
  std::vector<member_info> many;
  for (std::uint64_t i = 1; i <= 20; ++i) many.push_back(with_devices(node(i), 0));
  const auto r = check_devices(many, wishes({1}, {}));
  BOOST_REQUIRE(!r);
  BOOST_TEST(r.error().text().find("n8 has no device; and 12 more") != std::string::npos,
             r.error().text());
}

BOOST_AUTO_TEST_CASE(
    PM_5_who_loses_its_node_moves_to_one_with_its_device_and_nobody_is_moved_from_one) {
  const std::vector<member_info> nodes{with_devices(node(1), 0), with_devices(node(2), 1),
                                       with_devices(node(5), 0)};
  const role_map before{{node_id{2}, node_id{3}, node_id{2}}, {node_id{3}}};
  const auto w = wishes({1, 1, 0}, {});
  BOOST_TEST((next_roles(before, nodes, rebalancing::none, w) ==
              role_map{{node_id{2}, node_id{2}, node_id{2}}, {node_id{5}}}));
  // Worker 2 alone may leave the busiest.
  const auto spread = next_roles(before, nodes, rebalancing::all, w);
  BOOST_TEST((spread.workers == ids{node_id{2}, node_id{2}, node_id{1}}));
  BOOST_TEST((spread.shards == ids{node_id{5}}));
  // One with a device has come.
  auto more = nodes;
  more.push_back(with_devices(node(6), 2));
  BOOST_TEST((next_roles(spread, more, rebalancing::all, w).workers ==
              ids{node_id{6}, node_id{2}, node_id{1}}));
}

// Any history of nodes that come and go: who wishes for a device has it, and a role moves only
// where its node is gone or it is spread.
BOOST_AUTO_TEST_CASE(PM_1_and_PM_5_hold_for_any_history) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    std::uint64_t state = seed * 0x9e3779b97f4a7c15U;
    const auto draw = [&](std::uint64_t n) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      return (state >> 33U) % n;
    };
    std::vector<member_info> nodes;
    std::uint64_t next_id = 1;
    const auto come = [&] {
      nodes.push_back(with_devices(node(next_id++, draw(4) == 0 ? "ps" : ""),
                                   static_cast<std::uint32_t>(draw(3))));
    };
    for (auto n = 2 + draw(4); n > 0; --n) come();
    std::vector<std::uint32_t> of_workers, of_shards;
    for (auto n = 1 + draw(4); n > 0; --n)
      of_workers.push_back(static_cast<std::uint32_t>(draw(3)));
    for (auto n = 1 + draw(3); n > 0; --n) of_shards.push_back(static_cast<std::uint32_t>(draw(2)));
    const auto w = wishes(of_workers, of_shards);
    const auto holds = [&](const role_map& r) {
      const auto has = [&](node_id n) {
        const auto at =
            std::find_if(nodes.begin(), nodes.end(), [&](const auto& m) { return m.id == n; });
        return at == nodes.end() ? std::uint32_t{0} : count_of(at->devices) + 1;
      };
      for (std::size_t i = 0; i < of_workers.size(); ++i)
        if (has(r.workers[i]) < of_workers[i] + 1) return false;
      for (std::size_t k = 0; k < of_shards.size(); ++k)
        if (has(r.shards[k]) < of_shards[k] + 1) return false;
      return true;
    };
    auto r = first_roles(nodes, client, static_cast<std::uint32_t>(of_workers.size()),
                         static_cast<std::uint32_t>(of_shards.size()), true, false, false, w);
    BOOST_TEST_CONTEXT("seed " << seed) {
      BOOST_TEST(bool(r) == bool(check_devices(nodes, w)));
      if (!r) continue;
      BOOST_TEST(holds(*r));
      for (int change = 0; change < 8; ++change) {
        if (draw(2) == 0 && nodes.size() > 1)
          nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(draw(nodes.size())));
        else
          come();
        if (!check_devices(nodes, w)) continue;
        const auto kept = next_roles(*r, nodes, rebalancing::none, w);
        BOOST_TEST(holds(kept));
        for (std::size_t i = 0; i < kept.workers.size(); ++i)
          BOOST_TEST((kept.workers[i] == r->workers[i] ||
                      std::none_of(nodes.begin(), nodes.end(),
                                   [&](const auto& m) { return m.id == r->workers[i]; })));
        r = next_roles(kept, nodes, rebalancing::all, w);
        BOOST_TEST(holds(*r));
        // There is no end of moving else.
        BOOST_TEST((next_roles(*r, nodes, rebalancing::all, w) == *r));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(only_living_nodes_count_in_the_order_of_their_start) {
  auto dead = node(2);
  dead.state = member_state::dead;
  const std::vector<member_info> view{node(3), dead, node(1), node(4, "", member_kind::client)};
  const auto nodes = nodes_in_order(view);
  BOOST_TEST_REQUIRE(nodes.size() == 2u);
  BOOST_TEST((nodes[0].id == node_id{1}));
  BOOST_TEST((nodes[1].id == node_id{3}));
}

BOOST_AUTO_TEST_SUITE_END()
