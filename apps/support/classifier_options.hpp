#pragma once
// The flags of programs that learn images, and those of train_classifier.

#include <troupe/data.hpp>
#include <troupe/program.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace troupe {

class scratch_folder;

struct image_options : training_flags {
  std::string data;  // folder of IDX files; without --data one that is made, and removed at the end
  std::uint64_t epochs = 10, steps = 0;  // steps of each worker; 0: of all epochs
  std::int64_t batch = 128;
  std::shared_ptr<scratch_folder> made_data;

  // Prints help or what is wrong with the flags, and exits (0 or 2). `own` adds the program's
  // flags.
  void parse(int argc, char** argv, const std::string& description,
             const std::function<void(CLI::App&)>& own);
  // What a training goes through whose epochs have so many steps.
  training_report::extent extent(const idx_info& images, std::uint64_t steps_of_epoch) const;
  // The test images fit the others.
  result<void> check(const idx_info& images, const idx_info& test_images) const;
};

struct classifier_options : image_options {
  std::string model = "perceptron";
  std::string save_onnx;  // file; empty: none

  static classifier_options parse(int argc, char** argv);
};

}  // namespace troupe
