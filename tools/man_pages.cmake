# cmake -P man_pages.cmake, within an installation: writes a man page for each of PROGRAMS, of VERSION, into FOLDER,
# of what it says of itself (--help).
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
find_program(HELP2MAN help2man)
if(NOT HELP2MAN)
  message(STATUS "No man pages: they are made by help2man, which is not here (a package of Debian)")
  return()
endif()
foreach(program ${PROGRAMS})
  cmake_path(GET program FILENAME name)
  execute_process(COMMAND ${program} --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "^[^.:\n]+" what "${help}")
  execute_process(COMMAND ${CMAKE_COMMAND} -E env LC_ALL=C.UTF-8 ${HELP2MAN} --no-info --name=${what} --version-string=${VERSION} --output=${FOLDER}/${name}.1 ${program}
                  COMMAND_ERROR_IS_FATAL ANY)
endforeach()
