// A symbol of libtorchreduce.so that is named after the headers it was built from. What is linked to it names it, too:
// built from other headers it cannot be loaded, instead of handing over calls that are read as something else.
#pragma once

// TR_INTERFACE comes from setup.py.
extern "C" __attribute__((visibility("default"))) const char TR_INTERFACE;

namespace torchreduce {
namespace {

[[gnu::used]] const char* const kSameHeaders = &TR_INTERFACE;

}  // namespace
}  // namespace torchreduce
