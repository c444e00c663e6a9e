// Plans whose large constants travel apart, and how a node asks for them.

#include "troupe/runtime/jobs/blob_pull.hpp"
#include "troupe/runtime/layers/layers.hpp"
#include "troupe/runtime/plan/plan_blobs.hpp"

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/op_table.hpp"

#include "schema/plan.capnp.h"

#include <boost/test/unit_test.hpp>

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <cstring>
#include <functional>
#include <numeric>

using namespace troupe;

namespace {

constexpr std::int64_t large = 40'000, small = 100;  // elements of f32

tensor counting(std::int64_t n) {
  auto t = tensor::make({dtype::f32, {n}});
  std::iota(t.data<float>(), t.data<float>() + n, 0.0F);
  return t;
}

// Two workers, each with a large constant and a small one.
plan plan_with_constants() {
  const auto ops = make_op_table();
  graph g(ops);
  const auto batch = index_batch(g, large, {.batch = 8, .parts = 2});
  const auto x = gather(constant(g, counting(large), "large"), batch.ids, 0);
  const auto w = variable(g, {dtype::f32, {}}, zeros(), "w");
  const auto loss =
      reduce_sum(square(x - w)) * batch.scale + reduce_sum(constant(g, counting(small), "small"));
  training_spec s;
  s.workers = 2;
  s.shards = 1;
  s.steps = 3;
  s.tasks = 4;
  s.task_names = {"/job:worker/task:0", "/job:worker/task:1", "/job:ps/task:0",
                  "/job:client/task:0"};
  s.worker_task = {0, 1};
  s.shard_task = {2};
  s.client_task = 3;
  auto p = compile_training(g, loss, s, {.name = "constants", .fold = false});
  BOOST_TEST_REQUIRE(bool(p), (p ? "" : p.error().text()));
  return *p;
}

shared_bytes bytes_of(std::size_t n, unsigned seed) {
  std::vector<std::byte> out(n);
  for (auto& b : out) b = static_cast<std::byte>((seed = seed * 1664525 + 1013904223) >> 24);
  return shared_bytes(std::move(out));
}

std::vector<std::byte> changed(std::span<const std::byte> bytes,
                               const std::function<void(wire::Apart::Builder)>& change) {
  std::vector<capnp::word> words(bytes.size() / sizeof(capnp::word));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  capnp::FlatArrayMessageReader reader(kj::arrayPtr(words.data(), words.size()));
  capnp::MallocMessageBuilder message;
  message.setRoot(reader.getRoot<wire::Plan>());
  change(message.getRoot<wire::Plan>().getApart()[0]);
  const auto flat = capnp::messageToFlatArray(message);
  const auto out = flat.asBytes();
  const auto* first = reinterpret_cast<const std::byte*>(out.begin());
  return {first, first + out.size()};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(plan_blobs)

BOOST_AUTO_TEST_CASE(a_constant_of_all_workers_is_apart_once_and_comes_back) {
  const auto p = plan_with_constants();
  known_blobs known;
  const auto apart = encode_apart(p, known);
  BOOST_TEST(apart.blobs.size() == 1U);
  BOOST_TEST(apart.blobs.begin()->first.bytes == large * 4U);
  BOOST_TEST(apart.bytes.size() < encode(p).size() - 2 * large * 4U + 4096);
  auto read = decode_apart(apart.bytes);
  BOOST_TEST_REQUIRE(bool(read), (read ? "" : read.error().text()));
  BOOST_TEST(!read->is_whole());
  BOOST_TEST(read->blob_bytes() == large * 4U);
  for (const auto& [id, bytes] : apart.blobs) read->give(id, bytes);
  BOOST_TEST_REQUIRE(read->is_whole());
  const auto whole = read->finish();
  BOOST_TEST_REQUIRE(bool(whole), (whole ? "" : whole.error().text()));
  BOOST_TEST((*whole == p));
  // Without them it is no plan; and a plan of one piece reads as before.
  BOOST_TEST(decode_plan(apart.bytes).error().text().find("not in it") != std::string::npos);
  auto one_piece = decode_apart(encode(p));
  BOOST_TEST_REQUIRE(bool(one_piece));
  BOOST_TEST(one_piece->is_whole());
  BOOST_TEST((*one_piece->finish() == p));
}

BOOST_AUTO_TEST_CASE(what_is_apart_of_nothing_is_refused) {
  known_blobs known;
  const auto bytes = encode_apart(plan_with_constants(), known).bytes;
  BOOST_TEST(bool(decode_apart(changed(bytes, [](auto) {}))));
  const auto is_refused = [&](const std::function<void(wire::Apart::Builder)>& change) {
    const auto read = decode_apart(changed(bytes, change));
    return !read && read.error().text().find("apart") != std::string::npos;
  };
  BOOST_TEST(is_refused([](auto a) { a.setActor(100'000); }));
  BOOST_TEST(is_refused([](auto a) { a.setOp(7); }));
  BOOST_TEST(is_refused([](auto a) { a.setAttribute("nothing"); }));
  BOOST_TEST(is_refused([](auto a) { a.setBytes(1); }));
  BOOST_TEST(is_refused([](auto a) { a.setBytes(blob_bytes_max + 1); }));
}

BOOST_AUTO_TEST_CASE(BP_1_pieces_are_asked_for_a_few_ahead_of_what_has_come) {
  const node_id from{3};
  blob_map blobs;
  std::vector<blob_id> ids;
  for (const auto n : {10 * blob_piece_bytes, blob_piece_bytes - 1, blob_piece_bytes + 1}) {
    const auto b = bytes_of(n, static_cast<unsigned>(n));
    ids.push_back(id_of(b.view()));
    blobs.emplace(ids.back(), b);
  }
  blob_pull pull;
  pull.want(from, ids);
  std::vector<want_blob> under_way = pull.take_requests(job_id{7});
  BOOST_TEST(under_way.size() == blob_pull::ahead);
  std::size_t pieces = 0;
  while (!under_way.empty()) {
    auto p = piece_of(under_way.front(), blobs);
    under_way.erase(under_way.begin());
    BOOST_TEST((p.job == job_id{7}));
    BOOST_TEST(p.error == "");
    BOOST_TEST(bool(pull.on_piece(node_id{4}, p)));  // of somebody else
    BOOST_TEST(bool(pull.on_piece(from, p)));
    BOOST_TEST(bool(pull.on_piece(from, std::move(p))));  // twice
    ++pieces;
    for (auto& w : pull.take_requests(job_id{7})) under_way.push_back(w);
    BOOST_TEST(under_way.size() <= blob_pull::ahead);
  }
  BOOST_TEST(pieces == 13U);
  BOOST_TEST_REQUIRE(pull.has_all());
  for (const auto& id : ids) BOOST_TEST((*pull.find(id) == blobs.at(id)));
  // The next epoch wants one of them, and another one that is at hand.
  const auto other = bytes_of(blob_piece_bytes, 5);
  pull.want(from, {ids[1], id_of(other.view())});
  pull.have({{id_of(other.view()), other}});
  BOOST_TEST(pull.has_all());
  pull.forget_others();
  BOOST_TEST(pull.find(ids[0]) == nullptr);
  BOOST_TEST(pull.take_requests(job_id{7}).empty());
}

BOOST_AUTO_TEST_CASE(a_new_coordinator_is_asked_for_the_rest) {
  const auto bytes = bytes_of(3 * blob_piece_bytes, 1);
  const blob_map blobs{{id_of(bytes.view()), bytes}};
  blob_pull pull;
  pull.want(node_id{1}, {id_of(bytes.view())});
  const auto asked = pull.take_requests(job_id{7});
  BOOST_TEST(asked.size() == 3U);
  BOOST_TEST(bool(pull.on_piece(node_id{1}, piece_of(asked[0], blobs))));
  pull.want(node_id{2}, {id_of(bytes.view())});
  const auto again = pull.take_requests(job_id{7});
  BOOST_TEST_REQUIRE(again.size() == 2U);
  BOOST_TEST(again[0].offset == blob_piece_bytes);
  for (const auto& w : again) BOOST_TEST(bool(pull.on_piece(node_id{2}, piece_of(w, blobs))));
  BOOST_TEST(pull.has_all());
}

// A plan that comes as a blob, too, names its constants when it is here.
BOOST_AUTO_TEST_CASE(half_of_a_blob_stays_until_it_is_known_whether_it_is_wanted) {
  const auto bytes = bytes_of(3 * blob_piece_bytes, 1), plan = bytes_of(10, 2);
  const blob_map blobs{{id_of(bytes.view()), bytes}, {id_of(plan.view()), plan}};
  blob_pull pull;
  const node_id from{1};
  pull.want(from, {id_of(bytes.view())});
  BOOST_TEST(bool(pull.on_piece(from, piece_of(pull.take_requests(job_id{7})[0], blobs))));
  pull.want(from, {id_of(plan.view())});
  BOOST_TEST(bool(pull.on_piece(from, piece_of(pull.take_requests(job_id{7})[0], blobs))));
  pull.want(from, {id_of(bytes.view())});
  pull.forget_others();
  const auto rest = pull.take_requests(job_id{7});
  BOOST_TEST_REQUIRE(rest.size() == 2U);
  BOOST_TEST(rest[0].offset == blob_piece_bytes);
  for (const auto& w : rest) BOOST_TEST(bool(pull.on_piece(from, piece_of(w, blobs))));
  BOOST_TEST(pull.has_all());
}

BOOST_AUTO_TEST_CASE(BP_2_other_bytes_and_missing_ones_are_an_error) {
  const auto bytes = bytes_of(2 * blob_piece_bytes, 1), other = bytes_of(2 * blob_piece_bytes, 2);
  const auto id = id_of(bytes.view());
  const auto text_of = [&](const blob_map& blobs, const std::function<void(blob_piece&)>& change) {
    blob_pull pull;
    pull.want(node_id{1}, {id});
    std::string text;
    for (const auto& w : pull.take_requests(job_id{7})) {
      auto p = piece_of(w, blobs);
      change(p);
      if (auto ok = pull.on_piece(node_id{1}, std::move(p)); !ok && text.empty())
        text = ok.error().text();
    }
    BOOST_TEST(pull.find(id) == nullptr);
    return text;
  };
  BOOST_TEST(text_of({{id, other}}, [](auto&) {}).find("other bytes") != std::string::npos);
  BOOST_TEST(text_of({}, [](auto&) {}).find("no such constants") != std::string::npos);
  BOOST_TEST(text_of({{id, bytes}}, [](auto& p) { p.bytes.pop_back(); }).find("another size") !=
             std::string::npos);
  BOOST_TEST(piece_of({job_id{7}, id, 2 * blob_piece_bytes}, {{id, bytes}}).error.find("no such") !=
             std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
