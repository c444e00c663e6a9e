#pragma once
// A temporary folder with a small set of images in IDX files, for tests that train.

#include "troupe/devices/files/synthetic_images.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace troupe {

struct image_folder {
  image_folder() {
    auto pattern = (std::filesystem::temp_directory_path() / "troupe-images-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
    BOOST_REQUIRE(write_synthetic_images(path, {.train = 200, .test = 20, .seed = 3}));
  }
  ~image_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  image_folder(const image_folder&) = delete;
  image_folder& operator=(const image_folder&) = delete;
  std::string path;
};

}  // namespace troupe
