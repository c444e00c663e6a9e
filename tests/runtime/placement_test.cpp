#include "runtime/placement.hpp"

#include <boost/test/unit_test.hpp>

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

constexpr node_id client{99};

}  // namespace

BOOST_AUTO_TEST_SUITE(placement)

BOOST_AUTO_TEST_CASE(workers_come_from_the_first_node_and_shards_from_the_last) {
  const std::vector<member_info> three{node(1), node(2), node(3)};
  const auto p = place_training(three, client, 2, 2);
  BOOST_REQUIRE(p);
  BOOST_TEST((p->nodes[p->worker_task[0]] == node_id{1}));
  BOOST_TEST((p->nodes[p->worker_task[1]] == node_id{2}));
  BOOST_TEST((p->nodes[p->shard_task[0]] == node_id{3}));
  BOOST_TEST((p->nodes[p->shard_task[1]] == node_id{2}));  // shares the node of worker 1, and its task
  BOOST_TEST(p->shard_task[1] == p->worker_task[1]);
  BOOST_TEST((p->nodes[p->client_task] == client));
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
