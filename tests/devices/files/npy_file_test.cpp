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
      {file(header("f4", "False", "(2,)"), two_floats), "type 'f4', which is none that is known"},
      {file(header("=f4", "False", "(2,)"), two_floats), "none that is known"},
      {file(header("|f4", "False", "(2,)"), two_floats), "none that is known"},
      {file(header("", "False", "(2,)"), two_floats), "type '', which is none that is known"},
      {file(header("<f4", "False", "(1000000000,)"), two_floats), "and the file 8"},
      {file(header("<f4", "False", "(4000000000, 4000000000, 4000000000)"), two_floats),
       "too many elements"},
      {file(header("<f4", "False", "(-2,)"), two_floats), "type, order and shape"},
      {file(header("<f4", "False", "(1,1,1,1,1,1,1,1,2)"), two_floats), "type, order and shape"},
      {file(header("<f4", "Maybe", "(2,)"), two_floats), "type, order and shape"},
      {file("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", two_floats),
       "type, order and shape"},
      {file("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", two_floats),
       "its elements have fields, which tensors lack"},
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

BOOST_AUTO_TEST_CASE(types_that_tensors_lack_are_named_as_numpy_names_them) {
  const std::pair<std::string, std::string_view> cases[] = {
      {"|i1", "int8 ('|i1')"},   {"<i2", "int16 ('<i2')"},     {">u2", "uint16 ('>u2')"},
      {"<u4", "uint32 ('<u4')"}, {"<u8", "uint64 ('<u8')"},    {"<f16", "longdouble ('<f16')"},
      {"<c8", "complex64"},      {"<c16", "complex128"},       {"<c32", "complex ('<c32')"},
      {"|O", "object ('|O')"},   {"|S7", "bytes ('|S7')"},     {"<U7", "str ('<U7')"},
      {"<M8[ns]", "datetime64"}, {"<m8[25us]", "timedelta64"}, {"|V2", "void ('|V2')"},
  };
  for (const auto& [type, named] : cases) {
    const auto t = parse_npy(
        bytes_of(file("{'descr': '" + type + "', 'fortran_order': False, 'shape': (2,), }", "")),
        "a.npy");
    BOOST_TEST_REQUIRE(!t);
    BOOST_TEST(t.error().message().find("its elements are of type " + std::string(named)) !=
                   std::string::npos,
               t.error().message());
    BOOST_TEST(t.error().message().find("tensors have f32, f64") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(elements_in_either_order_of_bytes_are_the_same_for_every_type) {
  std::mt19937_64 bits(1);
  const std::pair<const char*, dtype> cases[] = {
      {"f4", dtype::f32}, {"f8", dtype::f64}, {"i4", dtype::i32},    {"i8", dtype::i64},
      {"u1", dtype::u8},  {"f2", dtype::f16}, {"b1", dtype::boolean}};
  for (const auto& [type, expected] : cases) {
    std::string little, big;
    for (int i = 0; i < 3; ++i) {
      std::string element;
      for (std::size_t b = 0; b < size_of(expected); ++b)
        element += static_cast<char>(expected == dtype::boolean ? bits() & 1U : bits());
      little += element;
      big += std::string(element.rbegin(), element.rend());
    }
    for (const auto& [order, data] : {std::pair('<', little), std::pair('>', big)}) {
      const auto t = parse_npy(bytes_of(file(std::string("{'descr': '") + order + type +
                                                 "', 'fortran_order': False, 'shape': (3,), }",
                                             data)),
                               "a.npy");
      BOOST_TEST_REQUIRE(bool(t), (t ? "" : t.error().text()));
      BOOST_TEST((t->spec() == tensor_spec{expected, {3}}));
      BOOST_TEST(std::ranges::equal(t->bytes(), bytes_of(little)));
    }
  }
}

BOOST_AUTO_TEST_CASE(elements_in_fortrans_order_come_in_that_of_c) {
  const std::vector<std::vector<std::int64_t>> shapes{
      {3, 2},           {70, 33}, {2, 3, 4}, {5, 1, 7}, {2, 3, 4, 5},
      {3, 2, 4, 2, 35}, {0, 3},   {3, 0, 2}, {1, 1},    {2, 1, 2, 1, 3, 1, 2, 2}};
  for (const auto& sizes : shapes)
    for (const char* type : {"i4", "u1", "f8"}) {
      std::vector<dim> dims;
      std::string text;
      std::int64_t n = 1;
      for (const auto size : sizes) {
        dims.push_back({size, 0});
        // As Python 2 wrote it, too.
        text += std::to_string(size) + (type[0] == 'f' ? "L, " : ", ");
        n *= size;
      }
      const auto bytes = static_cast<std::size_t>(type[1] - '0');
      std::string data;
      for (std::int64_t i = 0; i < n; ++i) {
        std::string element(8, '\0');
        std::memcpy(element.data(), &i, 8);
        data += element.substr(0, bytes);
      }
      const auto t =
          parse_npy(bytes_of(file(std::string("{'descr': '<") + type +
                                      "', 'fortran_order': True, 'shape': (" + text + "), }",
                                  data)),
                    "a.npy");
      BOOST_TEST_REQUIRE(bool(t), (t ? "" : t.error().text()));
      BOOST_TEST((t->shape() == *shape::from(dims)));
      // Element k in C's order has indices whose place in Fortran's order is its value.
      bool is_right = true;
      for (std::int64_t k = 0; k < n; ++k) {
        std::int64_t rest = k, place = 0;
        for (std::size_t d = sizes.size(); d-- > 0;) {
          std::int64_t step = 1;
          for (std::size_t e = 0; e < d; ++e) step *= sizes[e];
          place += rest % sizes[d] * step;
          rest /= sizes[d];
        }
        is_right = is_right && std::memcmp(t->bytes().data() + static_cast<std::size_t>(k) * bytes,
                                           &place, bytes) == 0;
      }
      BOOST_TEST(is_right, "shape (" << text << ")");
    }
}

BOOST_AUTO_TEST_CASE(headers_by_python_2_are_read) {
  for (const std::string header :
       {"{'descr': '<f4', 'fortran_order': False, 'shape': (2L,), }          \n",
        "{'descr': u'<f4', u'fortran_order': False, 'shape': (1L, 2L), }\n",
        "{b'descr': b'<f4', 'fortran_order': False, 'shape': (2L, 1), }"}) {
    const auto t = parse_npy(bytes_of(file(header, two_floats)), "a.npy");
    BOOST_TEST_REQUIRE(bool(t), (t ? "" : t.error().text()));
    BOOST_TEST(t->data<float>()[1] == 2);
  }
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
