#pragma once
// The flags of programs that learn a text.

#include <troupe/data.hpp>
#include <troupe/program.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace troupe {

class scratch_folder;

struct text_options : training_flags {
  // A file; without --text the project's own documents, as a file that is removed at the end.
  std::string text;
  std::uint64_t steps = 1000;
  std::int64_t batch = 16, context = 128;
  std::shared_ptr<scratch_folder> made_text;

  // Prints help or what is wrong with the flags, and exits (0 or 2). The defaults are those of the
  // members before.
  void parse(int argc, char** argv, const std::string& description,
             const std::string& default_optimizer, const std::function<void(CLI::App&)>& own);
  double tokens_per_step() const {
    return double(batch) * double(context) * double(update == update_kind::sync ? workers : 1);
  }
};

}  // namespace troupe
