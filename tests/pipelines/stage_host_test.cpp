// Libraries of stages that come out of files, as nodes load them.

#include "troupe/actors/flow/stage_host.hpp"

#include "tests/devices/temporary_folder.hpp"
#include "tests/support/loaded_libraries.hpp"

#include <boost/test/unit_test.hpp>

#include <string>

using namespace troupe;
using test::loaded_library;

BOOST_AUTO_TEST_SUITE(stage_host)

BOOST_AUTO_TEST_CASE(stages_of_a_file_are_found_by_their_names) {
  const auto l = load_stages(loaded_library("stages"));
  BOOST_REQUIRE_MESSAGE(l, (l ? "" : l.error().text()));
  BOOST_TEST_REQUIRE((*l != nullptr));
  BOOST_TEST((*l)->name() == "loaded_stages");
  BOOST_TEST((*l)->version() == "2.5");
  BOOST_TEST(((*l)->find("half") != nullptr));
  BOOST_TEST(((*l)->find("third") != nullptr));
  BOOST_TEST(((*l)->find("quarter") == nullptr));
}

// load_ops() says what is wrong with a file that is none.
BOOST_AUTO_TEST_CASE(a_file_without_stages_is_no_mistake) {
  const test::temporary_folder folder;
  for (const auto& file : {loaded_library("ops"), loaded_library("nothing"), folder.file("none")}) {
    const auto l = load_stages(file);
    BOOST_REQUIRE_MESSAGE(l, (l ? "" : l.error().text()));
    BOOST_TEST((*l == nullptr), file);
  }
}

BOOST_AUTO_TEST_CASE(stages_that_cannot_be_used_are_refused_with_the_file_and_why) {
  const auto refusal = [](const std::string& name) {
    const auto file = loaded_library(name);
    const auto l = load_stages(file);
    BOOST_REQUIRE(!l);
    BOOST_TEST((l.error().code() == error_code::usage));
    const auto text = l.error().message();
    BOOST_TEST(text.starts_with("stage library " + file + ": "), text);
    return text.substr(("stage library " + file + ": ").size());
  };
  BOOST_TEST(refusal("throws") == "troupe_stage_library() threw an exception");
  BOOST_TEST(refusal("null") == "troupe_stage_library() returned a null pointer");
  BOOST_TEST(refusal("other_abi").starts_with("it was built with another compiler"));
  BOOST_TEST(refusal("same_names") == "stage library loaded_stages: two stages are named half");
}

BOOST_AUTO_TEST_SUITE_END()
