# cmake --install BUILD --prefix P, and cpack -G DEB in the build folder. What is installed can be moved as a whole: programs find the library
# of strategies in ../share/piper, and a build folder has it there, too.
include(GNUInstallDirs)
set(programs piperc piper-run piper-verify piper-diff piper-sim piper-search piper-checkpoint)

file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/share/piper)
file(CREATE_LINK ${CMAKE_SOURCE_DIR}/strategies ${CMAKE_BINARY_DIR}/share/piper/strategies SYMBOLIC)

# Debian's libraries are found anywhere; those of another folder where they were linked.
set_target_properties(${programs} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS ${programs} RUNTIME DESTINATION bin)
install(PROGRAMS tools/piper-export DESTINATION bin)
install(DIRECTORY strategies formats DESTINATION share/piper)
install(DIRECTORY tools/ DESTINATION share/piper/tools FILES_MATCHING PATTERN "*.py" PATTERN README.md PATTERN __pycache__ EXCLUDE)
install(FILES README.md DESTINATION share/doc/piper)
install(DIRECTORY samples DESTINATION share/doc/piper USE_SOURCE_PERMISSIONS)

install(FILES tools/completion.bash DESTINATION share/bash-completion/completions RENAME piperc)
install(FILES tools/completion.zsh DESTINATION share/zsh/site-functions RENAME _piper)
list(TRANSFORM programs REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE files)
install(CODE "set(PROGRAMS \"${files}\")
set(FOLDER \"${CMAKE_BINARY_DIR}/man\")
set(VERSION ${PROJECT_VERSION})
include(\"${CMAKE_SOURCE_DIR}/tools/man_pages.cmake\")")
install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION share/man/man1)

# Pages link to each other as in the repository; bash looks for a file of the command's name.
set(links ${CMAKE_BINARY_DIR}/links)
file(MAKE_DIRECTORY ${links}/doc/piper ${links}/bash-completion/completions)
foreach(folder strategies formats tools)
  file(CREATE_LINK ../../piper/${folder} ${links}/doc/piper/${folder} SYMBOLIC)
endforeach()
foreach(program piper-run piper-verify piper-diff piper-sim piper-search piper-checkpoint)
  file(CREATE_LINK piperc ${links}/bash-completion/completions/${program} SYMBOLIC)
endforeach()
install(DIRECTORY ${links}/ DESTINATION share)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME piper-compiler)  # Debian's piper is another program
set(CPACK_PACKAGE_CONTACT "The developers of Piper <piper@localhost>" CACHE STRING "who maintains the package")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "compiler and runtime for distributed training")
set(CPACK_PACKAGE_DESCRIPTION "Reads a model as an ONNX file and a strategy as a YAML file,
writes one proven plan for each device, and runs the plans on CPUs or NVIDIA GPUs.")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "openmpi-bin, python3-torch, python3-onnx")
include(CPack)
