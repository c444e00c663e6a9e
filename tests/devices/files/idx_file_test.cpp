#include "troupe/devices/files/idx_file.hpp"

#include "tests/devices/idx_files.hpp"
#include "troupe/devices/host/host_device.hpp"

#include <random>

using namespace troupe;
using namespace troupe::test;

namespace {

// The error's text must hold every one of these.
template <class T>
void check_error(const result<T>& r, std::initializer_list<const char*> parts) {
  BOOST_REQUIRE(!r);
  for (const auto* part : parts)
    BOOST_TEST(r.error().message().find(part) != std::string::npos,
               r.error().message() << " lacks \"" << part << '"');
}

byte_vector first(const byte_vector& bytes, std::size_t n) {
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n)};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(idx_file)

BOOST_AUTO_TEST_CASE(plain_and_gzip_files_give_the_same_elements) {
  const auto set = make_small_set(20);
  for (const auto& bytes : {set.images, gzip(set.images)}) {
    const auto array = parse_idx(bytes, 3, "images");
    BOOST_REQUIRE(array);
    BOOST_TEST(array->sizes == (std::vector<std::int64_t>{20, 2, 3}));
    BOOST_REQUIRE(array->elements.size() == 120U);
    BOOST_TEST(array->elements[119] == 119);
    const auto sizes = parse_idx_header(std::span(bytes).first(40), 3, "images");
    BOOST_REQUIRE(sizes);
    BOOST_TEST(*sizes == array->sizes);
  }
}

BOOST_AUTO_TEST_CASE(gzip_of_several_members_is_one_file_and_what_follows_is_refused) {
  const auto set = make_small_set(20);
  for (const std::size_t cut : {3U, 16U, 70U, 136U}) {
    auto bytes = gzip(first(set.images, cut));
    const auto second = gzip(std::span(set.images).subspan(cut));
    bytes.insert(bytes.end(), second.begin(), second.end());
    bytes.resize(bytes.size() + 100);  // zeros
    const auto array = parse_idx(bytes, 3, "images");
    BOOST_REQUIRE_MESSAGE(array, (array ? "" : array.error().text()));
    BOOST_TEST((array->elements == parse_idx(set.images, 3, "images")->elements));
    BOOST_TEST(bool(parse_idx_header(bytes, 3, "images")));
    bytes.push_back(std::byte{'x'});
    check_error(parse_idx(bytes, 3, "images"),
                {"images: neither zeros nor another member", "at byte"});
  }
}

BOOST_AUTO_TEST_CASE(a_folder_is_opened_cheaply_and_loaded_whole) {
  const temporary_folder folder;
  write_small_set(folder, 7);
  write_small_set(folder, 3, "t10k");
  const auto info = open_idx(folder.path(), false);
  BOOST_REQUIRE(info);
  BOOST_TEST((*info == idx_info{.path = folder.path(),
                                .test = false,
                                .samples = 7,
                                .rows = 2,
                                .columns = 3,
                                .classes = 10}));
  const auto test = load_idx(folder.path(), true);
  BOOST_REQUIRE(test);
  BOOST_TEST((*test)->info.samples == 3);
  BOOST_TEST((*test)->labels == (std::vector<std::uint8_t>{0, 1, 2}));
  BOOST_TEST((*test)->images.size() == 18U);
}

BOOST_AUTO_TEST_CASE(IDX_1_a_cut_file_is_an_error_wherever_it_is_cut) {
  const auto set = make_small_set(20);
  for (const auto& whole : {set.images, gzip(set.images)})
    for (std::size_t n = 0; n < whole.size(); ++n) {
      const auto array = parse_idx(first(whole, n), 3, "train-images");
      BOOST_REQUIRE_MESSAGE(!array, "cut to " << n << " of " << whole.size());
      BOOST_TEST(array.error().message().starts_with("train-images: "), array.error().message());
    }
}

BOOST_AUTO_TEST_CASE(IDX_1_a_file_of_another_kind_says_what_was_expected) {
  const auto set = make_small_set(2);
  auto other = set.images;
  other[0] = std::byte{0x50};
  check_error(parse_idx(other, 3, "x"), {"x: ", "two zero bytes", "50 00"});
  other = set.images;
  other[2] = std::byte{0x0d};
  check_error(parse_idx(other, 3, "x"), {"u8 (0x08)", "0x0d"});
  check_error(parse_idx(set.labels, 3, "x"), {"expected images (3 dimensions)", "found 1"});
  check_error(parse_idx(set.images, 1, "x"), {"expected labels (1 dimensions)", "found 3"});
}

BOOST_AUTO_TEST_CASE(IDX_1_a_file_with_too_many_bytes_is_refused) {
  auto bytes = make_small_set(2).images;
  bytes.push_back(std::byte{0});
  check_error(parse_idx(bytes, 3, "x"), {"declares 12 bytes", "holds 13", "too long"});
  check_error(parse_idx(gzip(bytes), 3, "x"), {"more than the 12 bytes"});
}

BOOST_AUTO_TEST_CASE(IDX_2_a_header_that_declares_more_than_there_is_takes_no_memory) {
  // 4 GiB declared, in 16 bytes, plain and packed; then more than any file may hold.
  const auto lying = idx_bytes({65536, 256, 256}, {});
  check_error(parse_idx(lying, 3, "x"), {"declares 4294967296 bytes", "holds 0"});
  check_error(parse_idx(gzip(lying), 3, "x"), {"declares 4294967296 bytes", "cannot hold"});
  check_error(parse_idx(idx_bytes({0xffffffff, 0xffffffff, 0xffffffff}, {}), 3, "x"),
              {"declares more than 4294967296 bytes"});
}

BOOST_AUTO_TEST_CASE(IDX_2_a_zip_bomb_is_read_no_further_than_its_header_says) {
  std::vector<std::uint8_t> zeros(50'000'000);
  const auto bomb = gzip(idx_bytes({1, 2, 3}, zeros));
  check_error(parse_idx(bomb, 3, "x"), {"more than the 6 bytes"});
}

BOOST_AUTO_TEST_CASE(IDX_3_labels_must_match_images_and_classes) {
  const auto where = idx_info{
      .path = "folder", .test = false, .samples = 0, .rows = 0, .columns = 0, .classes = 10};
  const auto three = make_small_set(3), two = make_small_set(2);
  check_error(combine_idx(*parse_idx(three.images, 3, "i"), *parse_idx(two.labels, 1, "l"), where),
              {"folder", "has 3 images", "has 2 labels"});
  const std::uint8_t wrong[] = {1, 10, 2};
  check_error(combine_idx(*parse_idx(three.images, 3, "i"),
                          *parse_idx(idx_bytes({3}, wrong), 1, "l"), where),
              {"label 1", "is 10", "expected 0 to 9"});
  auto no_classes = where;
  no_classes.classes = 0;
  check_error(
      combine_idx(*parse_idx(two.images, 3, "i"), *parse_idx(two.labels, 1, "l"), no_classes),
      {"0 classes"});
}

BOOST_AUTO_TEST_CASE(missing_folders_and_files_are_named) {
  const temporary_folder folder;
  check_error(open_idx(folder.file("nowhere"), false),
              {"no folder", "nowhere", "train-images-idx3-ubyte"});
  check_error(load_idx(folder.file("nowhere"), true),
              {"no folder", "nowhere", "t10k-images-idx3-ubyte"});
  BOOST_TEST((open_idx(folder.file("nowhere"), false).error().code() == error_code::not_found));
  write_file(folder.file("train-images-idx3-ubyte"), make_small_set(2).images);
  check_error(
      open_idx(folder.path(), false),
      {folder.path().c_str(), "neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte.gz"});
  std::filesystem::create_directory(folder.file("train-labels-idx1-ubyte"));
  check_error(load_idx(folder.path(), false), {"train-labels-idx1-ubyte", "not a regular file"});
}

BOOST_AUTO_TEST_CASE(counts_that_differ_are_seen_before_anything_is_loaded) {
  const temporary_folder folder;
  write_file(folder.file("train-images-idx3-ubyte"), make_small_set(3).images);
  write_file(folder.file("train-labels-idx1-ubyte"), make_small_set(2).labels);
  check_error(open_idx(folder.path(), false),
              {"has 3 images", "has 2 labels", "do not belong together"});
}

BOOST_AUTO_TEST_CASE(random_and_damaged_bytes_never_do_harm) {
  std::mt19937 bits(3);
  const auto packed = gzip(make_small_set(200).images);
  for (int trial = 0; trial < 2000; ++trial) {
    byte_vector bytes = packed;
    if (trial % 2 == 0) {
      bytes.resize(bits() % 64);
      for (auto& b : bytes) b = static_cast<std::byte>(bits());
      if (bytes.size() > 3 && trial % 4 == 0)
        bytes[0] = bytes[1] = std::byte{0}, bytes[2] = std::byte{8}, bytes[3] = std::byte{3};
    } else {
      bytes[bits() % bytes.size()] ^= static_cast<std::byte>(1U << (bits() % 8));
    }
    const auto array = parse_idx(bytes, 3, "fuzz");
    if (array) {  // a flip in the gzip header's unused fields
      BOOST_TEST(array->elements.size() == 1200U);
    } else {
      BOOST_TEST(array.error().message().starts_with("fuzz: "));
    }
  }
}

BOOST_AUTO_TEST_CASE(HD_1_workers_of_a_process_share_a_dataset_and_give_it_back) {
  const temporary_folder folder;
  write_small_set(folder, 5);
  host_device device;
  std::weak_ptr<const idx_dataset> seen;
  {
    const auto one = device.dataset(folder.path(), false),
               two = device.dataset(folder.path(), false);
    BOOST_REQUIRE(one);
    BOOST_TEST(*one == *two);
    seen = *one;
  }
  BOOST_TEST(seen.expired());
  BOOST_TEST(!device.dataset(folder.file("none"), false));
  BOOST_TEST(!device.dataset(folder.path(), false, 4));  // labels 0 to 4
  BOOST_REQUIRE(device.dataset(folder.path(), false));
}

BOOST_AUTO_TEST_SUITE_END()
