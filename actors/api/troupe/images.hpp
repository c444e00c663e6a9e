#pragma once
// Pictures in PNG and JPEG files as tensors. Link troupe::images beside troupe::troupe.
//
//   auto grey = troupe::tensor::make({troupe::dtype::u8, {2, 3, 1}});
//   for (auto& pixel : grey.bytes()) pixel = std::byte{128};
//   auto png = troupe::png_bytes(grey);
//   if (!png) throw std::runtime_error(png.error().text());
//   auto back = troupe::decode_image(*png, "example", {.channels = 3});
//   if (!back) throw std::runtime_error(back.error().text());
//   auto large = troupe::resize(*back, 224, 224);
//   if (!large) throw std::runtime_error(large.error().text());
//   std::cout << troupe::to_string(large->spec()) << "\n";

#include "troupe/devices/images/image_file.hpp"
#include <troupe/data.hpp>
