#include "troupe/devices/files/npy_file.hpp"

#include "tests/devices/temporary_folder.hpp"
#include "troupe/devices/half.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

using namespace troupe;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// A file with this header, of version `major`.0.
std::string file(const std::string& header, const std::string& data, int major = 1) {
  std::string out = "\x93NUMPY";
  out += static_cast<char>(major);
  out += '\0';
  out += static_cast<char>(header.size() & 0xffU);
  out += static_cast<char>(header.size() >> 8U);
  if (major > 1) out += std::string(2, '\0');
  return out + header + data;
}

const std::string two_floats("\0\0\x80\x3f\0\0\0\x40", 8);

}  // namespace

BOOST_AUTO_TEST_SUITE(npy_file)

BOOST_AUTO_TEST_CASE(what_is_written_is_read_again_for_every_element_type_and_rank) {
  test::temporary_folder folder;
  const std::vector<shape> shapes{shape{}, shape{3}, shape{2, 3}, shape{0, 4},
                                  shape{1, 2, 1, 2, 1, 2, 1, 2}};
  std::mt19937_64 bits(1);
  for (std::uint8_t n = 0; n < dtype_count; ++n)
    for (const auto& s : shapes) {
      auto t = tensor::make({dtype{n}, s});
      for (auto& b : t.bytes())
        b = static_cast<std::byte>(dtype{n} == dtype::boolean ? bits() & 1U : bits() & 0x3fU);
      const auto path = folder.file("t.npy");
      const auto saved = save_npy(path, t);
      BOOST_TEST_REQUIRE(bool(saved), (saved ? "" : saved.error().text()));
      const auto back = load_npy(path);
      BOOST_TEST_REQUIRE(bool(back), (back ? "" : back.error().text()));
      if (dtype{n} == dtype::bf16) {
        BOOST_TEST((back->spec() == tensor_spec{dtype::f32, s}));
        for (std::int64_t i = 0; i < t.elements(); ++i)
          BOOST_TEST(back->data<float>()[i] == to_f32(t.data<bf16>()[i]));
        continue;
      }
      BOOST_TEST((back->spec() == t.spec()));
      BOOST_TEST(std::ranges::equal(back->bytes(), t.bytes()));
    }
}

BOOST_AUTO_TEST_CASE(a_header_is_what_numpy_writes_and_elements_begin_aligned) {
  const auto bytes = npy_bytes(tensor::of({1, 2}, {2}));
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  BOOST_TEST(text.substr(0, 8) == std::string("\x93NUMPY\x01\0", 8));
  BOOST_TEST(text.find("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }") == 10U);
  BOOST_TEST(text.size() % 64 == 8U);
  BOOST_TEST(text.substr(text.size() - 9) == "\n" + two_floats);
}

BOOST_AUTO_TEST_CASE(all_versions_and_any_order_of_keys_are_read) {
  for (const int version : {1, 2, 3}) {
    const auto t = parse_npy(bytes_of(file("{\"shape\":(2,),'fortran_order':True,'descr':'<f4'}\n",
                                           two_floats, version)),
                             "a.npy");
    BOOST_TEST_REQUIRE(bool(t), (t ? "" : t.error().text()));
    BOOST_TEST(t->data<float>()[1] == 2);
  }
}

BOOST_AUTO_TEST_CASE(files_that_are_none_are_errors_that_name_the_file_and_the_rule) {
  const auto header = [](const std::string& type, const std::string& order,
                         const std::string& sizes) {
    return "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + sizes + ", }\n";
  };
  const auto good = header("<f4", "False", "(2,)");
  const std::pair<std::string, std::string_view> cases[] = {
      {"", "does not begin"},
      {"PK\x03\x04 an archive", "does not begin"},
      {file(good, two_floats, 4), "version is 4.0"},
      {file(good, two_floats).substr(0, 20), "header ends early"},
      {file(good, two_floats + "x"), "f32[2] has 8 bytes, and the file 9"},
      {file(good, two_floats.substr(1)), "f32[2] has 8 bytes, and the file 7"},
      {file(header(">f4", "False", "(2,)"), two_floats), "not of a type"},
      {file(header("<u2", "False", "(2,)"), two_floats), "not of a type"},
      {file(header("|O", "False", "(2,)"), two_floats), "not of a type"},
      {file(header("<f4", "True", "(1, 2)"), two_floats), "Fortran"},
      {file(header("<f4", "False", "(1000000000,)"), two_floats), "and the file 8"},
      {file(header("<f4", "False", "(4000000000, 4000000000, 4000000000)"), two_floats),
       "too many elements"},
      {file(header("<f4", "False", "(-2,)"), two_floats), "type, order and shape"},
      {file(header("<f4", "False", "(1,1,1,1,1,1,1,1,2)"), two_floats), "type, order and shape"},
      {file(header("<f4", "Maybe", "(2,)"), two_floats), "type, order and shape"},
      {file("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", two_floats),
       "type, order and shape"},
      {file("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", two_floats),
       "type, order and shape"},
      {file("{'descr': '<f4', 'fortran_order': False}", two_floats), "type, order and shape"},
      {file("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", two_floats),
       "type, order and shape"},
  };
  for (const auto& [text, why] : cases) {
    const auto t = parse_npy(bytes_of(text), "a.npy");
    BOOST_TEST_REQUIRE(!t, why);
    BOOST_TEST((t.error().code() == error_code::usage));
    BOOST_TEST(t.error().message().starts_with("a.npy: "));
    BOOST_TEST(t.error().message().find(why) != std::string::npos, t.error().message()
                                                                       << " lacks " << why);
  }
  const auto none = load_npy("/nowhere/a.npy");
  BOOST_TEST_REQUIRE(!none);
  BOOST_TEST((none.error().code() == error_code::not_found));
}

BOOST_AUTO_TEST_CASE(ten_thousand_damaged_files_are_errors_or_tensors) {
  const auto good = npy_bytes(tensor::of({1, 2, 3, 4, 5, 6}, {2, 3}));
  std::mt19937_64 bits(1);
  int tensors = 0;
  for (int k = 0; k < 10'000; ++k) {
    auto bad = good;
    for (auto n = 1 + bits() % 4; n > 0; --n)
      bad[bits() % bad.size()] = static_cast<std::byte>(bits());
    if (bits() % 4 == 0) bad.resize(bits() % bad.size());
    const auto t = parse_npy(bad, "a.npy");
    if (!t) continue;
    ++tensors;
    BOOST_TEST(t->size_bytes() < bad.size());
  }
  BOOST_TEST(tensors > 100);
}

BOOST_AUTO_TEST_SUITE_END()
