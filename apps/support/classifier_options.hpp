#pragma once
// The flags of train_classifier.

#include "apps/support/training_flags.hpp"
#include "devices/host/idx_file.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace troupe {

class scratch_folder;

struct classifier_options : training_flags {
  std::string data;  // folder of IDX files; without --data one that is made, and removed at the end
  std::string model = "perceptron";
  std::uint64_t epochs = 10;
  std::int64_t batch = 128;
  std::shared_ptr<scratch_folder> made_data;

  // Prints help or what is wrong with the flags, and exits (0 or 2).
  static classifier_options parse(int argc, char** argv);
  // The test images fit the others.
  result<void> check(const idx_info& images, const idx_info& test_images) const;
};

}  // namespace troupe
