#include "tests/devices/idx_files.hpp"
#include "tests/devices/kernel_harness.hpp"
#include "troupe/devices/files/idx_sampler.hpp"

#include <algorithm>

using namespace troupe;
using namespace troupe::test;

namespace {

attributes reader_of(const temporary_folder& folder, std::int64_t samples, std::int64_t batch,
                     std::int64_t part = 0, std::int64_t parts = 1) {
  return {{"path", folder.path()},
          {"test", std::int64_t{0}},
          {"samples", samples},
          {"rows", std::int64_t{2}},
          {"columns", std::int64_t{3}},
          {"classes", std::int64_t{10}},
          {"batch", batch},
          {"seed", std::int64_t{5}},
          {"shuffle", std::int64_t{1}},
          {"part", part},
          {"parts", parts},
          {"global_scale", std::int64_t{1}}};
}

std::vector<tensor_spec> outputs_for(std::int64_t count) {
  return {f32({count, 6}), {dtype::i32, {count}}, f32({})};
}

std::vector<tensor> read(kernel_harness& host, const attributes& attrs, std::int64_t count,
                         std::uint64_t step) {
  auto r = host.run("idx_batch", {}, outputs_for(count), attrs, step);
  BOOST_REQUIRE_MESSAGE(r, (r ? "" : r.error().text()));
  return std::move(*r);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(idx_batch)

BOOST_AUTO_TEST_CASE(samples_come_in_the_order_of_the_epoch_with_pixels_as_255ths) {
  const temporary_folder folder;
  write_small_set(folder, 40);
  kernel_harness host;
  const auto order = permutation(5, 1, 40);  // steps 3 to 5 are those of epoch 1
  const auto out = read(host, reader_of(folder, 40, 16), 16, 4);
  for (std::int64_t i = 0; i < 16; ++i) {
    const auto sample = order[static_cast<std::size_t>(16 + i)];
    BOOST_TEST(out[1].data<std::int32_t>()[i] == static_cast<std::int32_t>(sample % 10));
    for (std::int64_t p = 0; p < 6; ++p)
      BOOST_TEST(out[0].data<float>()[i * 6 + p] ==
                 static_cast<float>((sample * 6 + static_cast<std::uint32_t>(p)) % 256) / 255.0F);
  }
  BOOST_TEST(out[2].data<float>()[0] == 1.0F / 16);
}

BOOST_AUTO_TEST_CASE(every_pixel_value_is_divided_exactly) {
  const temporary_folder folder;
  write_small_set(folder, 43);  // 258 pixels: every value
  kernel_harness host;
  auto attrs = reader_of(folder, 43, 43);
  attrs.set("shuffle", std::int64_t{0});
  const auto out = read(host, attrs, 43, 0);
  for (std::int64_t i = 0; i < 256; ++i)
    BOOST_TEST(out[0].data<float>()[i] == static_cast<float>(i) / 255.0F);
}

BOOST_AUTO_TEST_CASE(one_kernel_reads_any_step_as_a_new_one_would) {
  const temporary_folder folder;
  write_small_set(folder, 40);
  kernel_harness host;
  auto k = host.make("idx_batch", reader_of(folder, 40, 16));
  BOOST_REQUIRE(k);
  for (const std::uint64_t step : {0U, 1U, 2U, 3U, 2U, 9U, 0U}) {
    const auto count = step % 3 == 2 ? 8 : 16;
    const auto out = kernel_harness::run(**k, {}, outputs_for(count), step);
    BOOST_REQUIRE(out);
    const auto fresh = read(host, reader_of(folder, 40, 16), count, step);
    for (std::size_t i = 0; i < 3; ++i) BOOST_TEST(equal_bits((*out)[i], fresh[i]));
  }
}

BOOST_AUTO_TEST_CASE(two_parts_of_8_read_what_one_of_16_reads) {
  const temporary_folder folder;
  write_small_set(folder, 40);
  kernel_harness host;
  for (const std::uint64_t step : {0U, 2U}) {  // the last global batch has 8 samples
    const auto count = step == 2 ? 8 : 16;
    const auto whole = read(host, reader_of(folder, 40, 16), count, step);
    const auto low = read(host, reader_of(folder, 40, 8, 0, 2), count / 2, step);
    const auto high = read(host, reader_of(folder, 40, 8, 1, 2), count / 2, step);
    auto images = values_of(low[0]);
    const auto rest = values_of(high[0]);
    images.insert(images.end(), rest.begin(), rest.end());
    BOOST_TEST(images == values_of(whole[0]));
    BOOST_TEST(equal_bits(low[2], whole[2]));
    auto own = reader_of(folder, 40, 8, 0, 2);
    own.set("global_scale", std::int64_t{0});
    BOOST_TEST(read(host, own, count / 2, step)[2].data<float>()[0] ==
               2.0F / static_cast<float>(count));
  }
}

BOOST_AUTO_TEST_CASE(K_3_a_part_of_the_last_batch_may_be_empty) {
  const temporary_folder folder;
  write_small_set(folder, 9);
  kernel_harness host;
  auto attrs = reader_of(folder, 9, 4, 0, 2);  // one sample is left, for part 1
  BOOST_TEST(read(host, attrs, 0, 1)[2].data<float>()[0] == 1.0F);
  attrs.set("global_scale", std::int64_t{0});
  BOOST_TEST(read(host, attrs, 0, 1)[2].data<float>()[0] == 0.0F);
}

BOOST_AUTO_TEST_CASE(wrong_attributes_and_other_files_are_errors) {
  const temporary_folder folder;
  write_small_set(folder, 9);
  kernel_harness host;
  const auto fails = [&](const char* name, attributes::value v, const char* part) {
    auto attrs = reader_of(folder, 9, 4);
    attrs.set(name, v);
    const auto k = host.make("idx_batch", attrs);
    BOOST_REQUIRE_MESSAGE(!k, name);
    BOOST_TEST(k.error().message().find(part) != std::string::npos, k.error().message());
  };
  fails("path", std::string("/nowhere"), "no folder /nowhere");
  fails("samples", std::int64_t{10},
        "holds 9 images of 2x3 on this node, but the graph was built for 10");
  fails("classes", std::int64_t{3}, "expected 0 to 2");
  fails("batch", std::int64_t{0}, "batch 0");
  fails("part", std::int64_t{1}, "part 1 of 1");
  fails("parts", std::int64_t{100000}, "part 0 of 100000");
  BOOST_TEST(!host.run("idx_batch", {}, outputs_for(3), reader_of(folder, 9, 4)));
  BOOST_TEST(!host.run("idx_batch", {}, {f32({4, 5}), {dtype::i32, {4}}, f32({})},
                       reader_of(folder, 9, 4)));
}

BOOST_AUTO_TEST_SUITE_END()
