#include "troupe/runtime/wire/node_devices.hpp"

#include <boost/test/unit_test.hpp>

using namespace troupe;

BOOST_AUTO_TEST_SUITE(node_devices)

BOOST_AUTO_TEST_CASE(ND_1_groups_follow_each_other_and_equal_neighbours_are_one) {
  std::vector<device_group> all;
  BOOST_TEST(devices_text(all) == "no device");
  BOOST_TEST(count_of(all) == 0u);
  add_device(all, "asynchronous host", 0);
  BOOST_TEST(devices_text(all) == "gpu:0 (asynchronous host)");
  for (int i = 0; i < 2; ++i) add_device(all, "NVIDIA H100 80GB HBM3", 3ULL << 30);
  add_device(all, "NVIDIA H100 80GB HBM3", 2ULL << 30);
  BOOST_TEST(
      devices_text(all) ==
      "gpu:0 (asynchronous host), gpu:1 to gpu:2 (NVIDIA H100 80GB HBM3, 3.0 GiB each), gpu:3 (NVIDIA H100 80GB HBM3, 2.0 GiB)");
  BOOST_TEST(all.size() == 3u);
  BOOST_TEST(count_of(all) == 4u);
}

BOOST_AUTO_TEST_CASE(a_long_name_of_hardware_is_cut_to_what_a_record_may_hold) {
  std::vector<device_group> all;
  add_device(all, std::string(200, 'x'), 0);
  add_device(all, std::string(300, 'x'), 0);
  BOOST_TEST(all.at(0).hardware == std::string(hardware_bytes_max, 'x'));
  BOOST_TEST(all.at(0).count == 2u);
}

BOOST_AUTO_TEST_SUITE_END()
