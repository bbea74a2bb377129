# What makes a build from nothing quicker (PIPER_WHOLE), and changes no program.

# Headers that most sources include are compiled once, and GCC looks for memory to free only when it has taken 1 GB: together a third of
# its time. A cache of compilations has what it needs without either, and a precompiled header would be in its way.
if(PIPER_WHOLE AND NOT CCACHE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(PIPER_PRECOMPILED ON)
  add_compile_options(--param=ggc-min-expand=1000 --param=ggc-min-heapsize=1000000)
  set(often <algorithm> <array> <charconv> <cmath> <cstring> <filesystem> <fmt/format.h> <functional> <map> <memory> <optional> <set>
            <span> <string> <unordered_map> <variant> <vector>)
endif()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/headers.cc CONTENT "")

# piper_headers(NAME [OPTIONS option…] [HEADERS header…] [LINKS library…]): headers for sources that are compiled with these options.
function(piper_headers name)
  if(NOT PIPER_PRECOMPILED)
    return()
  endif()
  cmake_parse_arguments(HEADERS "" "" "OPTIONS;HEADERS;LINKS" ${ARGN})
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/generated/headers.cc)
  target_compile_options(${name} PRIVATE ${HEADERS_OPTIONS})
  target_link_libraries(${name} PRIVATE fmt::fmt ${HEADERS_LINKS})
  target_precompile_headers(${name} PRIVATE ${often} ${HEADERS_HEADERS})
endfunction()

# piper_precompiled(TARGET NAME): the target's sources are compiled with the headers of that name.
function(piper_precompiled target name)
  if(PIPER_PRECOMPILED)
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()

piper_headers(run_headers)
piper_headers(room_headers OPTIONS -O1 -finline-functions)
