#include "troupe/devices/files/safetensors.hpp"

#include "tests/devices/kernel_harness.hpp"
#include "tests/devices/temporary_folder.hpp"

#include <nlohmann/json.hpp>

#include <random>

using namespace troupe;
using namespace troupe::test;

namespace {

std::vector<std::byte> file_of(std::string_view header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::vector<std::byte> bytes(sizeof length + header.size() + data_bytes);
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, header.data(), header.size());
  return bytes;
}

std::vector<named_tensor> three_tensors() {
  return {{"b/weights", random_tensor({3, 5}, 1)},
          {"a", random_tensor({}, 2)},
          {"c", random_tensor({0, 7}, 3)}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(safetensors)

BOOST_AUTO_TEST_CASE(what_was_saved_is_loaded_in_order_of_names) {
  const temporary_folder folder;
  const auto saved = three_tensors();
  BOOST_REQUIRE(save_safetensors(folder.file("m.safetensors"), saved));
  const auto loaded = load_safetensors(folder.file("m.safetensors"));
  BOOST_REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().text()));
  BOOST_REQUIRE(loaded->size() == 3U);
  BOOST_TEST((*loaded)[0].name == "a");
  BOOST_TEST(equal_bits((*loaded)[0].values, saved[1].values));
  BOOST_TEST((*loaded)[1].name == "b/weights");
  BOOST_TEST(equal_bits((*loaded)[1].values, saved[0].values));
  BOOST_TEST((*loaded)[2].name == "c");
}

BOOST_AUTO_TEST_CASE(the_bytes_are_those_of_the_format) {
  const temporary_folder folder;
  BOOST_REQUIRE(save_safetensors(folder.file("m"), three_tensors()));
  const auto bytes = test::read_file(folder.file("m"));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  BOOST_TEST((8 + length) % 64 == 0U);
  BOOST_TEST(bytes.size() == 8 + length + 64);
  const auto header = nlohmann::json::parse(
      std::string_view(reinterpret_cast<const char*>(bytes.data()) + 8, length));
  BOOST_TEST((header["b/weights"] ==
              nlohmann::json{{"dtype", "F32"}, {"shape", {3, 5}}, {"data_offsets", {4, 64}}}));
  BOOST_TEST((header["a"]["shape"] == nlohmann::json::array()));
}

BOOST_AUTO_TEST_CASE(ST_1_a_save_replaces_the_whole_file_and_leaves_nothing_beside_it) {
  const temporary_folder folder;
  write_file(folder.file("m"), std::vector<std::byte>(100'000));
  BOOST_REQUIRE(save_safetensors(folder.file("m"), three_tensors()));
  BOOST_REQUIRE(load_safetensors(folder.file("m")));
  BOOST_TEST(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

BOOST_AUTO_TEST_CASE(ST_1_a_save_that_fails_changes_nothing) {
  const temporary_folder folder;
  const auto nowhere = save_safetensors(folder.file("none/m"), three_tensors());
  BOOST_REQUIRE(!nowhere);
  BOOST_TEST(nowhere.error().message().find("none/m") != std::string::npos);
  std::filesystem::create_directories(folder.file("m/inside"));  // cannot be replaced by a file
  BOOST_TEST(!save_safetensors(folder.file("m"), three_tensors()));
  BOOST_TEST(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  const std::vector<named_tensor> twice{{"x", random_tensor({1}, 1)}, {"x", random_tensor({1}, 2)}};
  const auto same = save_safetensors(folder.file("twice"), twice);
  BOOST_REQUIRE(!same);
  BOOST_TEST(same.error().message().find("\"x\"") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(ST_2_headers_that_do_not_fit_their_data_are_errors) {
  const auto parses = [](std::string_view header, std::size_t data) {
    return static_cast<bool>(parse_safetensors(file_of(header, data), "f"));
  };
  BOOST_TEST(parses(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  BOOST_TEST(parses(
      R"({"__metadata__":{"k":"v"},"x":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1));
  for (
      const auto* wrong :
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
       R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",
       R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       R"({"x":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})",
       R"({"x":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})",
       R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",
       R"({"x":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})",
       R"({"x":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})",
       R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
       R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0]}})",
       R"({"x":{"dtype":"F32","shape":[2],"data_offsets":["0",8]}})",
       R"({"x":{"dtype":"F32","shape":[2]}})", R"({"x":7})", R"([1])", R"({)", "", "null",
       R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"y":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"})
    BOOST_TEST(!parses(wrong, 8), wrong);
  BOOST_TEST(!parses(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7));
  BOOST_TEST(!parses(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9));
}

// A parser that is given them takes some hundred bytes for each.
BOOST_AUTO_TEST_CASE(ST_2_headers_of_nested_brackets_are_refused_before_they_are_parsed) {
  const auto says = [](const std::string& header) {
    const auto r = parse_safetensors(file_of(header, 8), "f");
    return r ? std::string("nothing") : r.error().text();
  };
  for (const std::string& brackets :
       {std::string(1 << 20, '['), R"({"x":)" + std::string(1 << 20, '['),
        R"({"x":{"dtype":"F32","data_offsets":[0,8],"shape":[[2]]}})" + std::string()}) {
    const auto said = says(brackets);
    BOOST_TEST(said.find("nested more than 3 levels deep") != std::string::npos, said);
  }
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"x":)";
  BOOST_TEST(says(objects).find("nested more than 3 levels deep") != std::string::npos);
  // Brackets in names are no nesting.
  const auto named = parse_safetensors(
      file_of(R"({"[[[[{\"[":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8), "f");
  BOOST_TEST(bool(named));
}

BOOST_AUTO_TEST_CASE(ST_2_cut_and_random_bytes_are_errors) {
  const auto whole = file_of(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  for (std::size_t n = 0; n < whole.size(); ++n)
    BOOST_TEST(!parse_safetensors(std::span(whole).first(n), "f"));
  std::mt19937 bits(1);
  for (int trial = 0; trial < 2000; ++trial) {
    auto bytes = whole;
    for (int flips = 0; flips < 3; ++flips)
      bytes[bits() % (bytes.size() - 8)] ^= static_cast<std::byte>(1U << (bits() % 8));
    if (const auto r = parse_safetensors(bytes, "f"); !r)
      BOOST_TEST(r.error().message().starts_with("f: "));
  }
  BOOST_TEST(!parse_safetensors(file_of(std::string(1'000'000, '['), 0), "deep"));
}

BOOST_AUTO_TEST_CASE(equal_weights_have_an_equal_hash_whatever_their_order) {
  const auto tensors = three_tensors();
  const std::vector<named_tensor> other_order{tensors[2], tensors[0], tensors[1]};
  const auto hash = weights_hash(tensors);
  BOOST_TEST(hash.size() == 32U);
  BOOST_TEST(hash == weights_hash(other_order));
  auto changed = tensors;
  changed[0].values = random_tensor({3, 5}, 9);
  BOOST_TEST(hash != weights_hash(changed));
  BOOST_TEST(weights_hash({}) == "99aa06d3014798d86001c324468d497f");  // XXH3-128 of nothing
}

BOOST_AUTO_TEST_SUITE_END()
