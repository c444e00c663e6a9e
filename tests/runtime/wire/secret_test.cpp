#include "troupe/runtime/wire/secret.hpp"

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

using namespace troupe;

namespace {

// The flags of the mapping that `at` lies in, as the kernel lists them ("rd wr mr ... dd").
std::string flags_of(const void* at) {
  std::ifstream maps("/proc/self/smaps");
  bool is_there = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range;
    words >> range;
    if (const auto dash = range.find('-'); dash != std::string::npos && range.back() != ':') {
      const auto begin = std::stoull(range.substr(0, dash), nullptr, 16);
      const auto end = std::stoull(range.substr(dash + 1), nullptr, 16);
      const auto address = reinterpret_cast<std::uintptr_t>(at);
      is_there = begin <= address && address < end;
    }
    if (is_there && line.starts_with("VmFlags:")) return line + " ";
  }
  return {};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(secret)

BOOST_AUTO_TEST_CASE(its_text_lies_in_memory_that_no_core_file_holds) {
  const troupe::secret s("sixteen secret b");
  BOOST_TEST(s.text() == "sixteen secret b");
  const auto flags = flags_of(s.text().data());
  if (flags.empty()) {
    BOOST_TEST_MESSAGE("skipped: this system does not list the flags of memory");
    return;
  }
  BOOST_TEST(flags.find(" dd ") != std::string::npos, flags);
}

BOOST_AUTO_TEST_CASE(copies_share_the_memory_and_an_empty_one_has_none) {
  troupe::secret copy;
  BOOST_TEST(copy.empty());
  {
    const troupe::secret s("words");
    copy = s;
    BOOST_TEST(copy.text().data() == s.text().data());
  }
  BOOST_TEST(copy.text() == "words");
  BOOST_TEST((copy == troupe::secret("words")));
  BOOST_TEST(!(copy == troupe::secret()));
  BOOST_TEST(troupe::secret("").empty());
}

BOOST_AUTO_TEST_CASE(it_is_never_printed) {
  std::ostringstream out;
  out << troupe::secret("words");
  BOOST_TEST(out.str() == "(a secret of 5 bytes)");
}

BOOST_AUTO_TEST_CASE(a_string_can_be_wiped) {
  std::string text = "a text that is too long for the string object itself";
  wipe(text);
  BOOST_TEST(text.find_first_not_of('\0') == std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
