#pragma once
// The stage of train_on_pictures that runs on other nodes, too: in a stage library, which the
// program links and nodes load.

#include <troupe/stages.hpp>

#include <cstdint>
#include <string>

// The pixels of a picture's file as [side, side, 3], from 0 to 1.
struct load_picture {
  std::int64_t side = 32;
  static constexpr auto fields = troupe::fields<&load_picture::side>("side");
  troupe::result<troupe::tensor> operator()(std::string path) const;
};
// The same of a sample, which keeps its numbers.
struct load_sample {
  load_picture load;
  static constexpr auto fields = troupe::fields<&load_sample::load>("load");
  troupe::result<troupe::sample<troupe::tensor>> operator()(troupe::sample<std::string> path) const;
};

const troupe::stage_library& picture_stages();
