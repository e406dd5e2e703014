"""The page holds what the records hold, needs nothing from outside, and obeys no text of a kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from conftest_records import MACHINE, make_bench, make_check, make_measurement, make_verdict
