#pragma once
// A program tells its node of work that it does beside its jobs. Threading: values, inside one
// process.

#include "troupe/runtime/insight/listed_work.hpp"

#include <caf/allowed_unsafe_message_type.hpp>

#include <memory>

namespace troupe {

struct list_work {
  std::shared_ptr<const listed_work> work;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::list_work)
