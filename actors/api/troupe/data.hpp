#pragma once
// Tensors, and the files that they come from and go to: .npy, .npz, safetensors, IDX, texts.
//
//   auto t = troupe::tensor::of({1, 2, 3, 4, 5, 6}, {2, 3});
//   std::cout << troupe::to_string(t) << "\n";
//   auto folder = troupe::scratch_folder::make("example");
//   if (!folder) throw std::runtime_error(folder.error().text());
//   auto saved = troupe::save_npy((*folder)->path() + "/t.npy", t);
//   if (!saved) throw std::runtime_error(saved.error().text());
//   auto loaded = troupe::load_npy((*folder)->path() + "/t.npy");
//   if (!loaded) throw std::runtime_error(loaded.error().text());

#include "troupe/devices/files/idx_file.hpp"
#include "troupe/devices/files/npy_file.hpp"
#include "troupe/devices/files/npz_file.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/devices/files/scratch_folder.hpp"
#include "troupe/devices/files/synthetic_images.hpp"
#include "troupe/devices/files/text_file.hpp"
#include "troupe/devices/half.hpp"
#include "troupe/devices/tensor.hpp"
#include "troupe/devices/tensor_text.hpp"
#include "troupe/schema/error.hpp"
