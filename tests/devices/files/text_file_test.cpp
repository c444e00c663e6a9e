#include "troupe/devices/files/text_file.hpp"

#include "tests/devices/temporary_folder.hpp"
#include "troupe/devices/host/host_device.hpp"

#include <boost/test/unit_test.hpp>

#include <fstream>
#include <set>

using namespace troupe;
using troupe::test::temporary_folder;

BOOST_AUTO_TEST_SUITE(text_file)

BOOST_AUTO_TEST_CASE(a_text_is_known_by_its_content) {
  const temporary_folder folder;
  const auto path = folder.path() + "/text";
  std::ofstream(path) << "to be or not to be";
  const auto info = open_text(path);
  BOOST_TEST_REQUIRE(bool(info), (info ? "" : info.error().text()));
  BOOST_TEST(info->bytes == 18);
  const auto text = load_text(*info);
  BOOST_TEST_REQUIRE(bool(text));
  BOOST_TEST((*text)->size() == 18u);
  std::ofstream(path) << "to be or not to bE";
  const auto other = load_text(*info);
  BOOST_TEST_REQUIRE(!other);
  BOOST_TEST(
      other.error().text().find("is another text on this node: every node needs the same file") !=
      std::string::npos);
  BOOST_TEST((open_text(folder.path() + "/none").error().code() == error_code::not_found));
  BOOST_TEST((open_text(folder.path()).error().code() == error_code::usage));
}

BOOST_AUTO_TEST_CASE(pieces_follow_from_seed_step_and_place_and_parts_of_a_batch_are_the_batch) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    for (std::uint64_t step = 0; step < 10; ++step)
      for (std::uint64_t place = 0; place < 10; ++place) {
        const auto at = piece_of_text(seed, step, place, 1'000'000'007);
        BOOST_TEST(at < 1'000'000'007u);
        BOOST_TEST(at == piece_of_text(seed, step, place, 1'000'000'007));
        seen.insert(at);
      }
  BOOST_TEST(seen.size() == 300u);

  const temporary_folder folder;
  const auto path = folder.path() + "/text";
  std::ofstream(path) << "abcdefghijklmnopqrstuvwxyz";
  const auto info = open_text(path);
  host_device device;
  const auto read = [&](std::int64_t batch, std::int64_t part, std::int64_t parts) {
    const attributes attrs{{"path", info->path},
                           {"samples", info->bytes},
                           {"hash", static_cast<std::int64_t>(info->hash)},
                           {"batch", batch},
                           {"context", std::int64_t{5}},
                           {"seed", std::int64_t{1}},
                           {"part", part},
                           {"parts", parts}};
    auto k = make_host_kernels().find("text_batch")->make(attrs, device);
    BOOST_TEST_REQUIRE(bool(k), (k ? "" : k.error().text()));
    const tensor_spec pieces{dtype::i32, {batch, 5}};
    const std::array specs{pieces, pieces, tensor_spec{dtype::f32, {}}};
    BOOST_TEST_REQUIRE(bool((*k)->prepare({}, specs)));
    std::array out{tensor::make(specs[0]), tensor::make(specs[1]), tensor::make(specs[2])};
    BOOST_TEST_REQUIRE(bool((*k)->run(tag{.step = 3}, {}, out)));
    std::vector<std::int32_t> tokens(out[0].data<std::int32_t>(),
                                     out[0].data<std::int32_t>() + out[0].elements());
    // Of the alphabet.
    for (std::size_t i = 0; i < tokens.size(); ++i)
      BOOST_TEST(out[1].data<std::int32_t>()[i] == tokens[i] + 1);
    BOOST_TEST(out[2].data<float>()[0] == 1.0F / static_cast<float>(batch * 5 * parts));
    return tokens;
  };
  const auto all = read(4, 0, 1);
  auto joined = read(2, 0, 2);
  const auto second = read(2, 1, 2);
  joined.insert(joined.end(), second.begin(), second.end());
  BOOST_TEST(joined == all, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(hostile_numbers_are_errors) {
  const temporary_folder folder;
  const auto path = folder.path() + "/text";
  std::ofstream(path) << "short";
  const auto info = open_text(path);
  host_device device;
  const auto make = [&](std::int64_t batch, std::int64_t context, std::int64_t part) {
    return bool(make_host_kernels()
                    .find("text_batch")
                    ->make({{"path", info->path},
                            {"samples", info->bytes},
                            {"hash", static_cast<std::int64_t>(info->hash)},
                            {"batch", batch},
                            {"context", context},
                            {"part", part},
                            {"parts", std::int64_t{2}}},
                           device));
  };
  BOOST_TEST(make(1, 4, 1));
  BOOST_TEST(!make(1, 5, 0));
  BOOST_TEST(!make(0, 1, 0));
  BOOST_TEST(!make(1, -1, 0));
  BOOST_TEST(!make(1, 1, 2));
  BOOST_TEST(!make(std::int64_t{1} << 60, 1, 0));
}

BOOST_AUTO_TEST_SUITE_END()
