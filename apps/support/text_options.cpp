#include "apps/support/text_options.hpp"

#include <troupe/data.hpp>

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <fstream>
#include <string_view>
#include <utility>

namespace troupe {

// Made by CMake: README.md of the project and of its folders.
extern const std::string_view documents;

void text_options::parse(int argc, char** argv, const std::string& description,
                         const std::string& default_optimizer,
                         const std::function<void(CLI::App&)>& own) {
  training_flags::parse(argc, argv, description, default_optimizer, [&](CLI::App& app) {
    app.add_option(
        "--text", text,
        "A file to learn, under the same path on every worker's node. Without it: the documents of Troupe itself");
    app.add_option("--steps", steps, "Steps of each worker")
        ->check(CLI::Range(1, 1'000'000'000))
        ->capture_default_str();
    app.add_option("--batch", batch, "Pieces of text per step of one worker")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    app.add_option("--context", context, "Bytes of a piece")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    own(app);
  });
  for (const auto& [flag, file] : {std::pair("--losses", losses), std::pair("--save", save),
                                   std::pair("--save-graph", save_graph)})
    if (is_same_file(file, text))
      usage_error(fmt::format("{} names the text that is to be read", flag));
  if (!text.empty()) return;
  auto folder = scratch_folder::make("troupe-text");
  if (!folder) usage_error(folder.error().text());
  made_text = std::move(*folder);
  text = made_text->path() + "/documents";
  if (!(std::ofstream(text, std::ios::binary) << documents)) usage_error("cannot write " + text);
}

}  // namespace troupe
