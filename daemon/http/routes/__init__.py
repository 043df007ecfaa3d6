"""The routes: each module has `routes(doors)`, which makes an APIRouter, listed in app.py."""
