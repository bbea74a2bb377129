# cmake -D VERSION=… -D SOURCE=… -D TEMPLATE=… -D OUTPUT=… -P version.cmake: writes what --version says, if it is not what OUTPUT says already.
# The commit is that of SOURCE itself, not of a repository in which it lies.
cmake_path(GET SOURCE PARENT_PATH above)
execute_process(COMMAND ${CMAKE_COMMAND} -E env GIT_CEILING_DIRECTORIES=${above} git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(COMMIT unknown)
endif()
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
