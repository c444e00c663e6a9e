#include "troupe/runtime/plan/device_name.hpp"

#include <boost/test/unit_test.hpp>

#include <utility>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(device_name)

BOOST_AUTO_TEST_CASE(parts_may_be_left_out_and_come_back_as_text) {
  for (const auto* text : {"/job:worker/task:0/cpu:1", "/job:ps", "/task:3", "/cpu:0",
                           "/job:a-b_c/cpu:7", "/job:ps/task:12", "/node:gpu-1.rack",
                           "/job:worker/label:rack=3/gpu:0", "/node:a/label:b=c/cpu:1"}) {
    const auto d = parse_device(text);
    BOOST_TEST_REQUIRE(bool(d), text);
    BOOST_TEST(to_string(*d) == text);
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_device_is_an_error_that_says_why) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "does not start with '/'"},
      {"cpu:0", "does not start with '/'"},
      {"/tpu:0", "there is no 'tpu' (devices are cpu and gpu)"},
      {"/cpu:0/gpu:0", "it is either a cpu or a gpu"},
      {"/gpu:256", "a node has 256 gpus at most"},
      {"/", "there is no ''"},
      {"/cpu:0/", "there is no ''"},
      {"/cpu", "'' is no number"},
      {"/cpu:-1", "'-1' is no number"},
      {"/cpu:4294967296", "'4294967296' is no number"},
      {"/cpu:0x", "'0x' is no number"},
      {"/job:", "'' is no name of a job"},
      {"/job:a b", "'a b' is no name of a job"},
      {"/node:", "'' is no name of a node"},
      {"/node:a b", "'a b' is no name of a node"},
      {"/label:rack", "'rack' is no label KEY=VALUE"},
      {"/label:=3", "'=3' is no label KEY=VALUE"},
      {"/label:a=b=c", "'a=b=c' is no label KEY=VALUE"},
      {"/label:a=b/node:c", "'node' is there twice or in the wrong order"},
      {"/task:0/job:a", "'job' is there twice or in the wrong order"},
      {"/cpu:0/cpu:1", "'cpu' is there twice or in the wrong order"},
  };
  for (const auto& [text, why] : cases) {
    const auto d = parse_device(text);
    BOOST_TEST_REQUIRE(!bool(d), text);
    BOOST_TEST(d.error().text().find(why) != std::string::npos, d.error().text());
    BOOST_TEST(d.error().text().find(std::string("device '") + text + "'") != std::string::npos,
               d.error().text());
  }
}

BOOST_AUTO_TEST_CASE(a_partial_name_admits_every_task_that_agrees) {
  const auto full = *parse_device("/job:worker/task:2");
  BOOST_TEST(parse_device("/job:worker")->admits(full));
  BOOST_TEST(parse_device("/task:2")->admits(full));
  BOOST_TEST(parse_device("/cpu:9")->admits(full));
  BOOST_TEST(!parse_device("/job:ps")->admits(full));
  BOOST_TEST(!parse_device("/job:worker/task:1")->admits(full));
}

BOOST_AUTO_TEST_CASE(an_inner_wish_refines_an_outer_one) {
  const auto outer = *parse_device("/job:worker/cpu:1");
  BOOST_TEST(to_string(outer.refined_by(*parse_device("/task:3/cpu:0"))) ==
             "/job:worker/task:3/cpu:0");
  BOOST_TEST(to_string(outer.refined_by(*parse_device("/gpu:2"))) == "/job:worker/gpu:2");
  BOOST_TEST(to_string(outer.refined_by(*parse_device("/label:a=b"))) ==
             "/job:worker/label:a=b/cpu:1");
  // A node is a place of its own.
  const auto node = *parse_device("/node:n1/cpu:1");
  BOOST_TEST(to_string(outer.refined_by(node)) == "/node:n1/cpu:1");
  BOOST_TEST(to_string(node.refined_by(*parse_device("/job:ps"))) == "/job:ps/cpu:1");
  BOOST_TEST(to_string(node.refined_by(*parse_device("/cpu:0"))) == "/node:n1/cpu:0");
}

BOOST_AUTO_TEST_SUITE_END()
