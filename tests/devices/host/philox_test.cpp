#include "troupe/devices/host/loops/philox.hpp"

#include <boost/test/unit_test.hpp>

BOOST_AUTO_TEST_SUITE(philox)

// The known answers of the paper's library: counter and key all zeros, all ones, and digits of pi.
BOOST_AUTO_TEST_CASE(it_gives_the_known_answers) {
  using words = std::array<std::uint32_t, 4>;
  const auto zeros = troupe::host::philox{0, 0}(0, 0);
  BOOST_TEST((zeros == words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const auto ones =
      troupe::host::philox{0xffffffff, 0xffffffff}(~std::uint64_t{0}, ~std::uint64_t{0});
  BOOST_TEST((ones == words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  const auto pi =
      troupe::host::philox{0xa4093822, 0x299f31d0}(0x85a308d3243f6a88, 0x0370734413198a2e);
  BOOST_TEST((pi == words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

BOOST_AUTO_TEST_SUITE_END()
