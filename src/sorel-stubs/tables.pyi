from sorel.files.tables import *
