#include "troupe/devices/files/synthetic_images.hpp"

#include "tests/devices/temporary_folder.hpp"
#include "troupe/devices/files/idx_file.hpp"

#include <algorithm>

using namespace troupe;
using namespace troupe::test;

BOOST_AUTO_TEST_SUITE(synthetic_images)

BOOST_AUTO_TEST_CASE(the_files_are_a_dataset_of_ten_classes) {
  const temporary_folder folder;
  BOOST_REQUIRE(
      write_synthetic_images(folder.file("images"), {.train = 300, .test = 100, .seed = 1}));
  const auto train = load_idx(folder.file("images"), false),
             test = load_idx(folder.file("images"), true);
  BOOST_REQUIRE(train);
  BOOST_REQUIRE(test);
  BOOST_TEST((*train)->info.samples == 300);
  BOOST_TEST((*test)->info.samples == 100);
  BOOST_TEST((*train)->info.rows == 28);
  BOOST_TEST((*train)->info.columns == 28);
  for (std::uint8_t c = 0; c < 10; ++c)
    BOOST_TEST(std::count((*train)->labels.begin(), (*train)->labels.end(), c) > 10);
  BOOST_TEST((*train)->images != (*test)->images);
}

BOOST_AUTO_TEST_CASE(equal_seeds_give_equal_bytes_and_other_seeds_others) {
  const temporary_folder folder;
  for (const auto& [name, seed] : {std::pair{"a", 1U}, {"b", 1U}, {"c", 2U}})
    BOOST_REQUIRE(
        write_synthetic_images(folder.file(name), {.train = 20, .test = 5, .seed = seed}));
  const auto images = [&](const char* name) {
    return test::read_file(folder.file(name) + "/train-images-idx3-ubyte");
  };
  BOOST_TEST((images("a") == images("b")));
  BOOST_TEST((images("a") != images("c")));
}

BOOST_AUTO_TEST_CASE(impossible_wishes_are_errors) {
  const temporary_folder folder;
  BOOST_TEST(!write_synthetic_images(folder.path(), {.train = 0, .test = 5, .seed = 1}));
  BOOST_TEST(!write_synthetic_images(folder.path(), {.train = 5, .test = 2'000'000, .seed = 1}));
  write_file(folder.file("file"), {});
  const auto r = write_synthetic_images(folder.file("file"), {.train = 5, .test = 5, .seed = 1});
  BOOST_REQUIRE(!r);
  BOOST_TEST(r.error().message().find("/file") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
