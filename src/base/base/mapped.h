// Which files are mapped where, for those who must name the file of an address.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>

namespace piper {

void note_mapping(const void* begin, size_t size, const std::string& path,
                  const struct stat& about);
void forget_mapping(const void* begin);
// Returns the path of the file, or null. Safe in a signal handler.
const char* mapped_file_at(const void* address);

}  // namespace piper
