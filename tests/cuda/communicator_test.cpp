#include "troupe/devices/nccl/communicator.hpp"

#include <boost/test/unit_test.hpp>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(communicator)

BOOST_AUTO_TEST_CASE(nccl_is_found_or_named_as_missing) {
  const auto v = nccl::version();
  BOOST_TEST_MESSAGE((v ? "NCCL " + *v : v.error().text()));
  if (v)
    BOOST_TEST(v->starts_with("2."));
  else
    BOOST_TEST(v.error().message().find("NCCL") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_rank_that_cannot_be_is_an_error) {
  const auto made = nccl::communicator::begin({}, 3, 2, "gpu:0");
  BOOST_REQUIRE(!made);
  BOOST_TEST((made.error().message() == "gpu:0: there is no rank 3 of 2" ||
              made.error().code() == error_code::not_found));
}

BOOST_AUTO_TEST_SUITE_END()
