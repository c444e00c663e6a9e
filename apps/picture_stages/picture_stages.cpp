#include "apps/picture_stages/picture_stages.hpp"

#include <troupe/images.hpp>

#include <utility>

using namespace troupe;

result<tensor> load_picture::operator()(std::string path) const {
  auto file = read_file{}(std::move(path));
  if (!file) return std::move(file.error());
  auto image = decode_image(file->bytes, file->path, {.channels = 3});
  if (!image) return std::move(image.error());
  auto small = resize(*image, side, side);
  if (!small) return std::move(small.error());
  auto pixels = tensor::make({dtype::f32, {side, side, 3}});
  const auto* from = std::as_const(*small).data<std::uint8_t>();
  for (std::int64_t i = 0; i < pixels.elements(); ++i)
    pixels.data<float>()[i] = static_cast<float>(from[i]) / 255;
  return pixels;
}

result<sample<tensor>> load_sample::operator()(sample<std::string> path) const {
  auto pixels = load(std::move(path.value));
  if (!pixels) return std::move(pixels.error());
  return sample<tensor>{std::move(*pixels), path.index, path.number, path.random};
}

const stage_library& picture_stages() {
  static const stage_library stages("picture_stages", "1.0",
                                    {stage_of<load_sample, sample<std::string>>("load_sample")});
  return stages;
}

TROUPE_STAGE_LIBRARY(picture_stages())
